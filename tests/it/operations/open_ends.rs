//! Intents that nobody can end by himself: calls that may have been applied, lanes that wait, keys that
//! name a later intent.

use crate::support::{Action, Gate, PgProxy, RawHttp, Receiver, Reply, TestDb, until};

use super::wire::{Client, app, booking, calling, send};

const BODY: &str = r#"{"amount": 5}"#;
const RETRY: &str = "on_unknown = \"retry\"\nretry = { for = \"1m\", first = \"10ms\", max = \"20ms\" }\nwait = \"20s\"";

#[tokio::test]
async fn a_call_that_may_have_been_applied_never_ends_as_a_failure_though_it_is_sent_again() {
    let receiver = Receiver::start().await;
    receiver.reply(Reply::cut());
    receiver.reply(Reply::status(401));
    receiver.always(Reply::status(201).body("{}"));
    let app = app(&calling("pay", &receiver, RETRY)).start().await;
    let client = Client::of(&app);
    let told = client.submit("pay", "k", BODY).await;
    assert_eq!(told.status, 202, "{told:?}");
    assert_eq!(told.json()["state"], "uncertain");
    let again = client.submit("pay", "k", BODY).await;
    assert_eq!(again.status, 202, "{again:?}");
    assert_eq!(receiver.requests().len(), 2, "nobody asks it by himself");
    app.db.verify().await;

    // Where no call can have been applied, the failure is told as one.
    receiver.reply(Reply::status(401));
    let told = client.submit("pay", "other", BODY).await;
    assert!(told.is_problem("operation-failed"), "{told:?}");
}

#[tokio::test]
async fn a_call_whose_node_is_lost_again_and_again_is_no_failure_either() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{}").behind(&gate));
    let lines = format!("{RETRY}\ntimeout = \"30s\"\nlease = \"40s\"");
    let app = app(&calling("pay", &receiver, &lines)).start().await;
    let client = Client::of(&app);
    let waiting = tokio::spawn(send(client.intent("pay", "k", BODY)));
    receiver.until_requests(1).await;
    // As if it had run alone in two processes that died, and this one were the third.
    app.db
        .execute(
            "UPDATE oncehook.delivery SET suspect = true, losses = 2, losses_alone = 2,
                    lease_until = clock_timestamp() - interval '1 second'",
        )
        .await;
    let told = waiting.await.unwrap();
    assert_eq!(told.status, 202, "{told:?}");
    assert_eq!(told.json()["state"], "uncertain");
    // Its answer comes after all.
    gate.open();
    client.until_state("pay", "k", "completed").await;
    let again = client.submit("pay", "k", BODY).await;
    assert_eq!((again.status, again.replayed()), (201, true), "{again:?}");
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn who_asks_for_what_a_lane_holds_is_told_202_and_waits_for_nothing() {
    let lines =
        "lane = \"json:/account\"\nlane_on_dead = \"hold\"\nwait = \"10m\"\nwait_max = \"10m\"";
    let app = app(&booking("pay", lines)).start().await;
    let client = Client::of(&app);
    let body = r#"{"amount": -1, "account": "a"}"#;
    let told = client.submit("pay", "k", body).await;
    assert_eq!(told.status, 202, "{told:?}");
    assert_eq!(told.json()["state"], "processing");
    assert_eq!(told.header("Retry-After"), Some("60"));
    assert_eq!(app.db.count("delivery WHERE state = 'held'").await, 1);
    let again = client.submit("pay", "k", body).await;
    assert_eq!(again.status, 202, "{again:?}");
}

#[tokio::test]
async fn an_intent_whose_key_was_renewed_meanwhile_never_gets_the_later_ones_answer() {
    let db = TestDb::new().await;
    let proxy = PgProxy::start(&db.url).await;
    let (direct, proxied) = (db.url.clone(), proxy.url(&db.name));
    let mut app = app(&booking("pay", "wait = \"20s\""))
        .on(db)
        .database_url(direct)
        .start()
        .await;
    let toml = app.toml().replace(&app.db.url, &proxied);
    let slow = app.another_node_with(&toml).await;
    let (client, slow) = (Client::of(&app), Client::at(slow.api));
    let first = client.submit("pay", "k", BODY).await;
    assert_eq!(first.status, 201, "{first:?}");
    // It is known as the same; before its answer is read, its key expires and names another intent.
    proxy.arm("coalesce(kept.gone, false)", Action::FreezeBefore);
    let again = tokio::spawn(send(slow.intent("pay", "k", BODY)));
    proxy.until_fired(1).await;
    app.db
        .execute("UPDATE oncehook.event_key SET expires_at = now() - interval '1 second'")
        .await;
    let later = client.submit("pay", "k", r#"{"amount": 6}"#).await;
    assert_eq!(later.status, 201, "{later:?}");
    assert_ne!(later.body, first.body);
    proxy.thaw();
    // Its own has ended with its key.
    let again = again.await.unwrap();
    assert!(
        again.is_problem("idempotency-response-expired"),
        "{again:?}"
    );
    assert_eq!(again.json()["result"], "succeeded");
    app.db.verify().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_gives_its_place_back() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{}").behind(&gate));
    let lines = "on_unknown = \"hold\"\nwait = \"10m\"\nwait_max = \"10m\"\ntimeout = \"2m\"";
    let toml = calling("pay", &receiver, lines) + "[limits]\nwaiting = 2\n";
    let app = app(&toml).start().await;
    let intent = format!(
        "POST /v1/operations/pay HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Idempotency-Key: k\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let mut gone = Vec::new();
    for _ in 0..2 {
        let mut raw = RawHttp::connect(app.api).await;
        assert!(raw.send(&intent).await);
        gone.push(raw);
    }
    let client = Client::of(&app);
    let waiting = async || {
        let metrics = client.get("/metrics").await.body;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("oncehook_operation_clients_waiting "));
        line.map(str::to_owned)
    };
    until("both wait", async || {
        waiting().await.as_deref() == Some("2")
    })
    .await;
    drop(gone);
    until("nobody does", async || {
        waiting().await.as_deref() == Some("0")
    })
    .await;
    gate.open();
}
