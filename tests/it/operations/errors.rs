//! What each answer of a backend and each error of a function makes of an operation, and what its client is told.

use crate::support::{Gate, Receiver, Reply, TestApp, TestDb, until};

use super::wire::{Answer, Client, app, booking, calling};

const BODY: &str = r#"{"amount": 5}"#;

/// Quick retries, and failures that stay as they are.
const LINES: &str = "on_unknown = \"hold\"\nbreaker = false\non_failure = \"keep\"\nwait = \"20s\"\ntimeout = \"400ms\"\n\
                     retry = { for = \"1h\", first = \"10ms\", max = \"20ms\" }";

/// What a first answer makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Makes {
    /// It is the answer.
    Answer,
    /// The backend did not take it: it is sent again.
    Again,
    /// It will never succeed.
    Dead,
    /// Nobody knows.
    Uncertain,
}

fn of_status(status: u16) -> Makes {
    match status {
        200..=299 | 400 | 402..=406 | 410..=424 | 426..=428 | 430..=499 => Makes::Answer,
        409 | 425 | 429 => Makes::Again,
        408 | 500.. => Makes::Uncertain,
        _ => Makes::Dead,
    }
}

#[tokio::test]
async fn f53_f58_each_answer_of_a_backend_has_one_meaning_and_the_retry_gets_it() {
    let receiver = Receiver::start().await;
    let app = app(&calling("pay", &receiver, LINES)).start().await;
    let client = Client::of(&app);
    let statuses = [
        200, 201, 204, 299, 300, 301, 302, 303, 304, 307, 308, 400, 401, 402, 403, 404, 407, 408,
        409, 410, 418, 422, 425, 429, 451, 500, 502, 503, 504,
    ];
    let gate = Gate::closed();
    let mut cases: Vec<(String, Reply, Makes, u16)> = Vec::new();
    for status in statuses {
        let mut reply = Reply::status(status).header("Content-Type", "text/plain");
        if !matches!(status, 204 | 304) {
            reply = reply.body("their own words");
        }
        cases.push((status.to_string(), reply, of_status(status), status));
    }
    for (name, reply) in [
        ("cut", Reply::cut()),
        ("cut_within", Reply::cut_within()),
        ("late", Reply::status(200).behind(&gate)),
    ] {
        cases.push((name.to_owned(), reply, Makes::Uncertain, 0));
    }
    for (key, reply, makes, status) in cases {
        let before = receiver.requests().len();
        receiver.reply(reply);
        receiver.always(Reply::status(201).body("at last"));
        let first = client.submit("pay", &key, BODY).await;
        let expected = match makes {
            Makes::Answer => status,
            Makes::Again => 201,
            Makes::Dead => 500,
            Makes::Uncertain => 202,
        };
        assert_eq!(first.status, expected, "{key}: {first:?}");
        let own_words = makes == Makes::Answer && status != 204;
        assert_eq!(
            first.body == "their own words",
            own_words,
            "{key}: {first:?}"
        );
        let again = client.submit("pay", &key, BODY).await;
        if makes == Makes::Uncertain {
            assert_eq!(again.json()["state"], "uncertain", "{key}: {again:?}");
        } else {
            assert_eq!(again.kept(), first.kept(), "{key}");
            assert!(again.replayed(), "{key}: {again:?}");
        }
        let calls = receiver.requests().split_off(before);
        assert_eq!(
            calls.len(),
            if makes == Makes::Again { 2 } else { 1 },
            "{key}"
        );
        let mut keys: Vec<&str> = calls
            .iter()
            .filter_map(|c| c.header("idempotency-key"))
            .collect();
        keys.dedup();
        assert_eq!(keys.len(), 1, "{key}: one effect key in every try");
    }
    gate.open();
    app.db.verify().await;
}

#[tokio::test]
async fn what_never_reached_the_backend_is_sent_when_it_is_there() {
    let address = crate::support::node::free_address();
    let url = format!("http://{address}/pay");
    let toml = format!(
        "[[operation]]\nname = \"pay\"\nkind = \"http\"\nurl = {url:?}\n\
         secrets = [{{ label = \"a\", value = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }}]\n{LINES}\n"
    );
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    let intent = client.intent("pay", "k", BODY);
    let first = tokio::spawn(super::wire::send(intent));
    until("it was tried", async || app.db.count("attempt").await > 0).await;
    let receiver = Receiver::start_on(address).await;
    receiver.always(Reply::status(201).body("{}"));
    let first = first.await.unwrap();
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(receiver.requests().len(), 1);
    app.db.verify().await;
}

/// What the function does next.
async fn does(db: &TestDb, body: &str) {
    db.execute(&format!(
        "CREATE OR REPLACE FUNCTION app.pay(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $f$
         BEGIN
           INSERT INTO app.payment (key, body) VALUES (event.key, '{{}}');
           {body}
         END $f$"
    ))
    .await;
}

async fn submitted(app: &TestApp, key: &str) -> (Answer, Answer) {
    let client = Client::of(app);
    let first = client.submit("pay", key, BODY).await;
    (first, client.submit("pay", key, BODY).await)
}

#[tokio::test]
async fn each_error_of_a_function_undoes_its_effect_and_each_answer_has_one_meaning() {
    let lines = "wait = \"30s\"\non_failure = \"keep\"\nretry = { for = \"1s\", first = \"5ms\", max = \"10ms\" }";
    let app = app(&booking("pay", lines)).start().await;
    let cases = [
        ("done", "RETURN '{\"result\": \"done\"}';", 200, 1),
        ("nothing", "RETURN NULL;", 200, 1),
        (
            "failed",
            "RETURN '{\"result\": \"failed\", \"reason\": \"no\"}';",
            422,
            1,
        ),
        (
            "skip",
            "RETURN '{\"result\": \"skip\", \"reason\": \"no\"}';",
            200,
            1,
        ),
        (
            "own",
            "RETURN '{\"result\": \"failed\", \"status\": 402, \"body_text\": \"no\"}';",
            402,
            1,
        ),
        (
            "permanent",
            "RAISE EXCEPTION 'no' USING ERRCODE = 'OH001';",
            500,
            0,
        ),
        ("retried", "RAISE EXCEPTION 'no';", 500, 0),
        ("division", "PERFORM 1 / 0;", 500, 0),
        (
            "constraint",
            "INSERT INTO app.payment (key) VALUES (NULL);",
            500,
            0,
        ),
        (
            "unknown word",
            "RETURN '{\"result\": \"perhaps\"}';",
            500,
            0,
        ),
        (
            "no status",
            "RETURN '{\"result\": \"done\", \"status\": 99}';",
            500,
            0,
        ),
        (
            "two bodies",
            "RETURN '{\"result\": \"done\", \"body\": 1, \"body_text\": \"1\"}';",
            500,
            0,
        ),
    ];
    for (name, body, status, effects) in cases {
        does(&app.db, body).await;
        let (first, again) = submitted(&app, &name.replace(' ', "_")).await;
        assert_eq!(first.status, status, "{name}: {first:?}");
        assert_eq!(again.kept(), first.kept(), "{name}");
        assert!(again.replayed() && !first.replayed(), "{name}");
        let made = app
            .db
            .count(&format!(
                "app.payment WHERE key = 'local:{}'",
                name.replace(' ', "_")
            ))
            .await;
        assert_eq!(made, effects, "{name}");
    }
    app.db.verify().await;
}
