//! The answer table, row by row, as a client meets it.

use std::time::{Duration, Instant};

use crate::support::{Gate, Receiver, Reply};

use super::wire::{Client, app, booking, calling, send};

const VOLATILE: &str = "volatile = [\"/client_time\", \"/items/*/trace\"]";

#[tokio::test]
async fn a_retry_gets_the_same_bytes_and_makes_nothing() {
    let app = app(&booking("pay", VOLATILE)).start().await;
    let client = Client::of(&app);
    let first = client
        .submit(
            "pay",
            "k1",
            r#"{"amount": 5, "currency": "EUR", "client_time": 1}"#,
        )
        .await;
    assert_eq!(first.status, 201, "{first:?}");
    assert!(!first.replayed());
    assert_eq!(first.header("Location"), Some("/payments/1"));
    assert_eq!(first.header("Content-Type"), Some("application/json"));
    assert_eq!(first.json()["payment"].to_string(), "1");
    for (key, body) in [
        (
            "k1",
            r#"{"amount": 5, "currency": "EUR", "client_time": 1}"#,
        ),
        (
            "\"k1\"",
            r#"{"amount": 5, "currency": "EUR", "client_time": 1}"#,
        ),
        ("k1;v=2", r#"{"currency":"EUR","amount":5,"client_time":1}"#),
        (
            "k1",
            "{\n \"client_time\": 99,\n \"amount\": 5,\t\"currency\": \"E\\u0055R\" }",
        ),
        ("k1", r#"{"amount": 5, "currency": "EUR"}"#),
    ] {
        let again = client.submit("pay", key, body).await;
        assert_eq!(again.kept(), first.kept(), "{body}");
        assert!(again.replayed(), "{body}");
        assert_ne!(
            again.header("Oncehook-Request-Id"),
            first.header("Oncehook-Request-Id")
        );
    }
    assert_eq!(app.db.count("app.payment").await, 1);
    assert_eq!(app.db.count("conflict").await, 0);
}

#[tokio::test]
async fn numbers_are_compared_as_they_are_written() {
    let app = app(&booking("pay", VOLATILE)).start().await;
    let client = Client::of(&app);
    let big = r#"{"amount": 9007199254740993}"#;
    assert_eq!(client.submit("pay", "k", big).await.status, 201);
    for other in [
        r#"{"amount": 9007199254740992}"#,
        r#"{"amount": 9007199254740993.0}"#,
        r#"{"amount": "9007199254740993"}"#,
        r#"{"amount": 9007199254740993, "x": null}"#,
    ] {
        let answer = client.submit("pay", "k", other).await;
        assert_eq!(answer.status, 409, "{other}");
        assert!(answer.is_problem("idempotency-key-mismatch"), "{answer:?}");
        assert!(answer.body.contains("a new key"), "{answer:?}");
    }
    assert!(client.submit("pay", "k", big).await.replayed());
    assert_eq!(app.db.count("app.payment").await, 1);
    assert_eq!(app.db.count("conflict").await, 4);
}

#[tokio::test]
async fn a_business_no_is_final_and_replayed() {
    let app = app(&booking("pay", "")).start().await;
    let client = Client::of(&app);
    let first = client.submit("pay", "k", r#"{"amount": 0}"#).await;
    assert_eq!(first.status, 422, "{first:?}");
    let again = client.submit("pay", "k", r#"{"amount": 0}"#).await;
    assert_eq!(again.kept(), first.kept());
    assert!(again.replayed() && !first.replayed());
    let status = client.get("/v1/operations/pay/keys/k").await.json();
    assert_eq!(
        (&status["state"], &status["outcome"]["result"]),
        (&"completed".into(), &"failed".into())
    );
}

#[tokio::test]
async fn what_is_under_way_is_waited_for_as_long_as_is_asked_and_then_202() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{\"paid\":true}").behind(&gate));
    let lines = "on_unknown = \"hold\"\nwait = \"100ms\"\nwait_max = \"1s\"\ntimeout = \"1m\"";
    let toml = calling("pay", &receiver, lines)
        + &calling("strict", &receiver, &format!("{lines}\nprofile = \"ietf\""));
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    for (prefer, applied, least) in [
        (None, None, Duration::from_millis(100)),
        (Some("respond-async"), Some("respond-async"), Duration::ZERO),
        (Some("wait=0"), Some("wait=0"), Duration::ZERO),
        (Some("wait=600"), Some("wait=1"), Duration::from_secs(1)),
    ] {
        let mut intent = client.intent("pay", "a/b", r#"{"amount": 5}"#);
        if let Some(prefer) = prefer {
            intent = intent.header("Prefer", prefer);
        }
        let began = Instant::now();
        let answer = send(intent).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        assert!(began.elapsed() >= least, "{prefer:?}");
        assert_eq!(answer.header("Preference-Applied"), applied);
        assert_eq!(answer.json()["state"], "processing");
        let location = answer.header("Location").unwrap();
        assert_eq!(location, "/v1/operations/pay/keys/a%2Fb");
        assert!(
            answer
                .header("Retry-After")
                .unwrap()
                .parse::<u64>()
                .unwrap()
                >= 1
        );
        assert_eq!(client.get(location).await.json()["key"], "a/b");
    }
    // Under the profile of the draft, who finds another's under way is told so at once.
    let intent = |wait: &str| {
        client
            .intent("strict", "k", r#"{"amount": 5}"#)
            .header("Prefer", wait.to_owned())
    };
    assert_eq!(send(intent("wait=0")).await.status, 202);
    let answer = send(intent("wait=1")).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    assert!(answer.is_problem("idempotency-in-progress"));
    assert!(answer.header("Retry-After").is_some());
    gate.open();
    receiver.until_requests(2).await;
    // A second is what a request may wait here: on a busy machine it comes again.
    let answer = loop {
        let answer = client.submit("pay", "a/b", r#"{"amount": 5}"#).await;
        if answer.status != 202 {
            break answer;
        }
    };
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (201, "{\"paid\":true}")
    );
    assert!(answer.replayed());
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn other_content_is_refused_in_every_state_and_changes_nothing() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{\"paid\":true}").behind(&gate));
    let lines = "on_unknown = \"hold\"\nwait = \"0s\"\ntimeout = \"1m\"";
    let lost = Receiver::start().await;
    lost.always(Reply::cut());
    let toml = calling("slow", &receiver, lines)
        + &calling("lost", &lost, lines)
        + &booking("pay", "profile = \"ietf\"");
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    let other = async |operation: &str, status: u16| {
        let answer = client.submit(operation, "k", r#"{"amount": 77}"#).await;
        assert_eq!(answer.status, status, "{operation}: {answer:?}");
        assert!(answer.is_problem("idempotency-key-mismatch"), "{answer:?}");
    };
    assert_eq!(
        client.submit("slow", "k", r#"{"amount": 1}"#).await.status,
        202
    );
    receiver.until_requests(1).await;
    other("slow", 409).await;
    gate.open();
    assert_eq!(
        client.submit("lost", "k", r#"{"amount": 1}"#).await.status,
        202
    );
    client.until_state("lost", "k", "uncertain").await;
    let uncertain = client.submit("lost", "k", r#"{"amount": 1}"#).await;
    assert_eq!(uncertain.status, 202, "{uncertain:?}");
    assert_eq!(uncertain.json()["state"], "uncertain");
    other("lost", 409).await;
    assert_eq!(
        client.submit("pay", "k", r#"{"amount": 1}"#).await.status,
        201
    );
    other("pay", 422).await;
    app.db
        .execute("UPDATE oncehook.response SET expires_at = now() - interval '1 second'")
        .await;
    let gone = client.submit("pay", "k", r#"{"amount": 1}"#).await;
    assert_eq!(gone.status, 410, "{gone:?}");
    assert!(gone.is_problem("idempotency-response-expired"));
    assert_eq!(gone.json()["state"], "completed");
    other("pay", 422).await;
    client.until_state("slow", "k", "completed").await;
    other("slow", 409).await;
    assert_eq!(app.db.count("conflict").await, 3);
    assert_eq!(app.db.count("event").await, 3);
    assert_eq!((receiver.requests().len(), lost.requests().len()), (1, 1));
}

#[tokio::test]
async fn a_failure_is_kept_where_the_operation_says_so() {
    let app = app(&booking("pay", "on_failure = \"keep\"")).start().await;
    let client = Client::of(&app);
    let first = client.submit("pay", "k", r#"{"amount": -1}"#).await;
    assert_eq!(first.status, 500, "{first:?}");
    let again = client.submit("pay", "k", r#"{"amount": -1}"#).await;
    assert_eq!(again.kept(), first.kept());
    assert!(again.replayed());
    let other = client.submit("pay", "k", r#"{"amount": 1}"#).await;
    assert_eq!(other.status, 409);
    assert_eq!(app.db.count("app.payment").await, 0);
}
