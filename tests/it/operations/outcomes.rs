//! Whoever writes the outcome of an operation writes its answer with it: the next retry gets it.

use serde_json::{Value, json};

use crate::support::node::free_address;
use crate::support::{Gate, Receiver, Reply, TestApp, TestDb, oncehook, until};

use super::wire::{Answer, Client, app, booking, calling, send};

const BODY: &str = r#"{"amount": 5}"#;

/// The first run of each, as if a node had claimed it at once and died, thrice while it ran alone.
const DIES: &str = "
CREATE FUNCTION app.dies() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN
  IF NEW.run = 1 AND NEW.run_at < 'infinity' THEN
    NEW.state := 'leased';
    NEW.lease_token := gen_random_uuid();
    NEW.leased_at := clock_timestamp();
    NEW.lease_until := clock_timestamp() + interval '20 ms';
    NEW.suspect := true; NEW.losses := 3; NEW.losses_alone := 2;
    INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, ended_at, verdict)
    SELECT NEW.event_id, NEW.handler_id, NEW.run, gen_random_uuid(), now(), 'lost' FROM generate_series(1, 3);
  END IF;
  RETURN NEW;
END $f$;
CREATE TRIGGER dies BEFORE INSERT ON oncehook.delivery FOR EACH ROW EXECUTE FUNCTION app.dies()";

/// Nothing can be booked until `DROP TRIGGER closed ON app.payment`; with this SQLSTATE.
async fn close(db: &TestDb, code: &str) {
    db.execute(&format!(
        "CREATE FUNCTION app.closed() RETURNS trigger LANGUAGE plpgsql AS $f$
         BEGIN RAISE EXCEPTION 'closed' USING ERRCODE = '{code}'; END $f$;
         CREATE TRIGGER closed BEFORE INSERT ON app.payment FOR EACH ROW EXECUTE FUNCTION app.closed()"
    ))
    .await;
}

async fn open(db: &TestDb) {
    db.execute("DROP TRIGGER closed ON app.payment").await;
}

/// No call can be under way any more.
async fn land(db: &TestDb) {
    db.execute(
        "UPDATE oncehook.delivery SET in_flight_until = now() - interval '1 s' WHERE state = 'uncertain';
         UPDATE oncehook.attempt SET in_flight_until = now() - interval '1 s' WHERE in_flight_until > now()",
    )
    .await;
}

/// The retry gets the stored answer, twice the same.
async fn replayed(client: &Client, operation: &str) -> Answer {
    let first = client.submit(operation, "k", BODY).await;
    assert!(first.replayed(), "{operation}: {first:?}");
    let again = client.submit(operation, "k", BODY).await;
    assert_eq!(again.kept(), first.kept(), "{operation}");
    first
}

/// A made-up answer says so much.
fn made_up(answer: &Answer, status: u16, result: &str, by: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let json = answer.json();
    assert_eq!(
        (&json["result"], &json["decided_by"]),
        (&json!(result), &json!(by)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn what_dies_as_poison_has_its_answer() {
    let toml = booking("pay", "wait = \"30s\"")
        + &booking("once", "wait = \"30s\"\non_failure = \"keep\"");
    let app = app(&toml).setup(DIES).start().await;
    let client = Client::of(&app);
    for operation in ["pay", "once"] {
        let first = client.submit(operation, "k", BODY).await;
        made_up(&first, 500, "dead", "handler");
        assert!(!first.replayed());
        let again = client.submit(operation, "k", BODY).await;
        if operation == "pay" {
            assert_eq!(again.status, 201, "nothing of it was done: {again:?}");
        } else {
            assert_eq!(again.kept(), first.kept());
            assert!(again.replayed());
        }
    }
    assert_eq!(app.db.count("app.payment").await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn what_has_spent_its_tries_has_its_answer_and_begins_again() {
    let retry = "retry = { for = \"1s\", first = \"5ms\", max = \"10ms\" }";
    let app = app(&booking("pay", &format!("wait = \"30s\"\n{retry}")))
        .start()
        .await;
    close(&app.db, "P0001").await;
    let client = Client::of(&app);
    let first = client.submit("pay", "k", BODY).await;
    made_up(&first, 500, "dead", "handler");
    let tries: i32 = app.db.one("SELECT attempts FROM oncehook.outcome").await;
    assert!(tries >= 12, "{tries}");
    open(&app.db).await;
    assert_eq!(client.submit("pay", "k", BODY).await.status, 201);
    assert_eq!(replayed(&client, "pay").await.status, 201);
    app.db.verify().await;
}

/// A backend that loses its first answer to each call, and says this of it when it is asked.
async fn asked(says: Value) -> Receiver {
    let calls = std::sync::atomic::AtomicU32::new(0);
    let answers = move |call: crate::support::Received| {
        let reply = if call.path.starts_with("/by-key/") {
            Reply::status(200).body(&says.to_string())
        } else if calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            Reply::cut()
        } else {
            Reply::status(201).body("{ \"sent\": 2 }")
        };
        let reply: std::pin::Pin<Box<dyn Future<Output = Reply> + Send>> =
            Box::pin(std::future::ready(reply));
        reply
    };
    Receiver::answering(free_address(), answers).await
}

#[tokio::test]
async fn what_a_probe_decides_has_its_answer() {
    let brought = json!({"state": "applied", "external_id": "psp_1", "response":
        {"status": 201, "headers": {"Location": "/p/1"}, "body": {"paid": true}}});
    let cases = [
        ("brought", brought),
        ("bare", json!({"state": "applied", "resource": "po_1"})),
        (
            "refused",
            json!({"state": "applied", "result": "failed", "reason": "no"}),
        ),
        ("absent", json!({"state": "absent"})),
    ];
    let mut toml = String::new();
    let mut backends = Vec::new();
    for (name, says) in cases {
        let backend = asked(says).await;
        let lines = format!(
            "on_unknown = \"probe\"\nbreaker = false\nprobe = {{ url = {:?}, after = [\"20ms\", \"200ms\", \"1s\", \"2s\", \"4s\", \"8s\"] }}",
            backend.url("/by-key/{effect_key}")
        );
        toml += &calling(name, &backend, &lines);
        backends.push(backend);
    }
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    for name in ["brought", "bare", "refused", "absent"] {
        let first = client
            .intent(name, "k", BODY)
            .header("Prefer", "respond-async");
        assert_eq!(send(first).await.status, 202);
        if name == "absent" {
            client.until_state(name, "k", "uncertain").await;
            land(&app.db).await;
        }
        let status = client.until_state(name, "k", "completed").await;
        let by = if name == "absent" { "handler" } else { "probe" };
        assert_eq!(status["outcome"]["decided_by"], by, "{status}");
    }
    let answer = replayed(&client, "brought").await;
    assert_eq!(
        (
            answer.status,
            answer.header("Location"),
            answer.body.as_str()
        ),
        (201, Some("/p/1"), "{\"paid\":true}")
    );
    made_up(&replayed(&client, "bare").await, 200, "succeeded", "probe");
    assert_eq!(replayed(&client, "bare").await.json()["resource"], "po_1");
    made_up(&replayed(&client, "refused").await, 422, "failed", "probe");
    let answer = replayed(&client, "absent").await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (201, "{ \"sent\": 2 }")
    );
    app.db.verify().await;
}

/// An operation whose call is out and whose lease has ended.
async fn out(app: &TestApp, client: &Client, operation: &str, receiver: &Receiver) {
    let intent = client
        .intent(operation, "k", BODY)
        .header("Prefer", "respond-async");
    assert_eq!(send(intent).await.status, 202);
    receiver.until_requests(1).await;
    app.db
        .execute("UPDATE oncehook.delivery SET lease_until = now() - interval '1 s' WHERE state = 'leased'")
        .await;
    client.until_state(operation, "k", "uncertain").await;
}

const LONG: &str = "on_unknown = \"hold\"\ntimeout = \"2m\"";

#[tokio::test]
async fn a_late_answer_is_what_the_retry_gets_whether_or_not_a_person_was_quicker() {
    let (late, given_up) = (Receiver::start().await, Receiver::start().await);
    let gates = [Gate::closed(), Gate::closed()];
    for (receiver, gate) in [&late, &given_up].into_iter().zip(&gates) {
        let answer = Reply::status(201).header("Content-Type", "application/json");
        receiver.always(answer.body("{ \"paid\" : 1 }").behind(gate));
    }
    let toml = calling("late", &late, LONG) + &calling("given_up", &given_up, LONG);
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    out(&app, &client, "late", &late).await;
    out(&app, &client, "given_up", &given_up).await;
    resolve(&client, "given_up", "dead").await;
    let told = replayed(&client, "given_up").await;
    made_up(&told, 500, "dead", "operator");
    for gate in &gates {
        gate.open();
    }
    client.until_state("late", "k", "completed").await;
    until("the late answer is kept", async || {
        client.submit("given_up", "k", BODY).await.status == 201
    })
    .await;
    for operation in ["late", "given_up"] {
        let answer = replayed(&client, operation).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (201, "{ \"paid\" : 1 }"),
            "{operation}"
        );
    }
    // What took effect is not begun again.
    assert_eq!((late.requests().len(), given_up.requests().len()), (1, 1));
    assert_eq!(app.db.count("outcome").await, 2);
    app.db.verify().await;
}

async fn resolve(client: &Client, operation: &str, word: &str) {
    let path = format!("/v1/events/{operation}/local:k/resolve");
    let body = json!({ "handler": operation, "as": word, "reason": "asked them" });
    let request = client
        .request(reqwest::Method::POST, &path)
        .header("Content-Type", "application/json")
        .body(body.to_string());
    let answer = send(request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn what_a_person_decides_has_its_answer() {
    const WORDS: [&str; 4] = ["succeeded", "failed", "dead", "retry"];
    let mut toml = String::new();
    let mut backends = Vec::new();
    for word in WORDS {
        let backend = Receiver::start().await;
        backend.reply(Reply::cut());
        backend.always(Reply::status(201).body("{ \"sent\": 2 }"));
        toml += &calling(word, &backend, "on_unknown = \"hold\"\nbreaker = false");
        backends.push(backend);
    }
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    for word in WORDS {
        assert_eq!(client.submit(word, "k", BODY).await.status, 202);
        client.until_state(word, "k", "uncertain").await;
    }
    land(&app.db).await;
    for word in WORDS {
        resolve(&client, word, word).await;
    }
    client.until_state("retry", "k", "completed").await;
    for (word, status) in [("succeeded", 200), ("failed", 422), ("dead", 500)] {
        let answer = replayed(&client, word).await;
        made_up(&answer, status, word, "operator");
        assert!(!answer.body.contains("asked them"), "{answer:?}");
    }
    assert_eq!(replayed(&client, "retry").await.body, "{ \"sent\": 2 }");
    let calls: Vec<usize> = backends.iter().map(|b| b.requests().len()).collect();
    assert_eq!(calls, [1, 1, 1, 2]);
    app.db.verify().await;
}

#[tokio::test]
async fn what_is_retired_has_its_answer() {
    let toml = booking("pay", "wait = \"0s\"") + "[dispatch]\nenabled = false\n";
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    assert_eq!(client.submit("pay", "k", BODY).await.status, 202);
    let retired = ["handlers", "retire", "pay", "--reason", "over"];
    let retired = oncehook(&app.config(), &retired, &[]).await;
    assert_eq!(retired.code, Some(0), "{}", retired.said());
    // The node has not heard of it.
    made_up(
        &replayed(&client, "pay").await,
        500,
        "cancelled",
        "operator",
    );
    assert_eq!(app.db.count("app.payment").await, 0);
    app.db.verify().await;
}

#[tokio::test]
async fn each_run_of_a_held_one_has_its_answer() {
    let lines = "lane = \"json:/account\"\nlane_on_dead = \"hold\"\nwait = \"20s\"";
    let app = app(&booking("pay", lines)).start().await;
    close(&app.db, "OH001").await;
    let client = Client::of(&app);
    let body = r#"{"amount": 5, "account": "a"}"#;
    let held = client.submit("pay", "k", body).await;
    assert_eq!(held.status, 202, "{held:?}");
    open(&app.db).await;
    resolve(&client, "pay", "retry").await;
    client.until_state("pay", "k", "completed").await;
    let answer = client.submit("pay", "k", body).await;
    assert_eq!(
        (answer.status, answer.replayed()),
        (201, true),
        "{answer:?}"
    );
    let statuses: Vec<i16> = app
        .db
        .all("SELECT status FROM oncehook.response ORDER BY run")
        .await;
    assert_eq!(statuses, [500, 201]);
    app.db.verify().await;
}
