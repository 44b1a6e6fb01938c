//! `http` handlers against a real receiver: what is sent, and what each answer does.

use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::support::node::free_address;
use crate::support::{AppBuilder, Gate, Received, Receiver, Reply, signer, until};

use super::{Sender, ledger, paid, put, timeline, verdicts};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

const RETRY: &str = "retry = { for = \"1m\", first = \"10ms\", max = \"20ms\" }";

/// One that retries within milliseconds.
pub(crate) fn calling(receiver: &Receiver, path: &str, lines: &str) -> AppBuilder {
    let lines = format!(
        "secrets = [{{ label = \"a\", value = {SECRET:?} }}, {{ label = \"b\", value = {OTHER_SECRET:?} }}]\n\
         on_unknown = \"retry\"\n{RETRY}\n{lines}"
    );
    ledger().http_handler("ledger", &receiver.url(path), &lines)
}

/// The signature as the specification says, made apart from the code under test.
fn verifies(request: &Received, secret: &str) -> bool {
    let header = |name: &str| request.header(name).unwrap();
    let at_s: i64 = header("webhook-timestamp").parse().unwrap();
    assert!((signer::now_s() - at_s).abs() < 60);
    let [_, _, (_, expected)] =
        signer::standard_webhooks(secret, header("webhook-id"), at_s, &request.body);
    header("webhook-signature")
        .split(' ')
        .any(|signature| signature == expected)
}

/// The effect keys of these calls; one, if they are all equal.
pub(crate) fn effect_keys(requests: &[Received]) -> Vec<&str> {
    let mut keys: Vec<_> = requests
        .iter()
        .map(|request| request.header("Idempotency-Key").unwrap())
        .collect();
    keys.dedup();
    keys
}

#[tokio::test]
async fn a_call_carries_the_exact_body_two_signatures_and_its_effect_key() {
    let receiver = Receiver::start().await;
    let app = calling(&receiver, "/hooks?x=1", "").start().await;
    let event = paid("evt_1");
    put(&app, &event).await;
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("succeeded"), &json!(1))
    );
    let requests = receiver.requests();
    let [request] = requests.as_slice() else {
        panic!("{} requests", requests.len());
    };
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("POST", "/hooks?x=1")
    );
    assert_eq!(request.body, event.to_string().into_bytes());
    assert!(verifies(request, SECRET) && verifies(request, OTHER_SECRET));
    let key = outcome["effect_key"].as_str();
    assert_eq!(request.header("Idempotency-Key"), key);
    assert_eq!(request.header("webhook-id"), key);
    for (name, value) in [
        ("Oncehook-Source", "stripe"),
        ("Oncehook-Event-Key", "evt_1"),
        ("Oncehook-Event-Type", "charge.succeeded"),
        ("Oncehook-Attempt", "1"),
        ("Oncehook-Run", "1"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    let correlation = timeline(&app, "evt_1").await["correlation_id"].clone();
    assert_eq!(
        request.header("Oncehook-Correlation-Id"),
        correlation.as_str()
    );
    app.db.verify().await;
}

#[tokio::test]
async fn whatever_is_no_final_answer_is_tried_again_under_the_same_effect_key() {
    let receiver = Receiver::start().await;
    let answers = [
        (Reply::status(409), "HTTP 409: not done"),
        (Reply::status(408), "HTTP 408: result unknown"),
        (Reply::status(425), "HTTP 425: not done"),
        (
            Reply::status(503).header("Retry-After", "0"),
            "HTTP 503: result unknown",
        ),
        (Reply::status(500), "HTTP 500: result unknown"),
        (Reply::status(502), "HTTP 502: result unknown"),
        (Reply::status(504), "HTTP 504: result unknown"),
        (
            Reply::cut(),
            "the connection was cut before an answer: result unknown",
        ),
        (
            Reply::cut_within(),
            "the connection was cut before an answer: result unknown",
        ),
    ];
    let app = calling(&receiver, "/", "").start().await;
    for (reply, _) in &answers {
        receiver.reply(reply.clone());
    }
    put(&app, &paid("evt_1")).await;
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("succeeded"), &json!(10))
    );
    let all = timeline(&app, "evt_1").await;
    let errors: Vec<_> = all["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["error"].as_str().unwrap())
        .collect();
    assert_eq!(errors, answers.map(|(_, error)| error));
    let requests = receiver.requests();
    assert_eq!(requests.len(), 10);
    assert_eq!(
        effect_keys(&requests),
        [outcome["effect_key"].as_str().unwrap()]
    );
    let tries: Vec<_> = requests
        .iter()
        .map(|r| r.header("Oncehook-Attempt").unwrap().to_owned())
        .collect();
    assert_eq!(
        tries,
        (1..=10).map(|n: i32| n.to_string()).collect::<Vec<_>>()
    );
    app.db.verify().await;
}

#[tokio::test]
async fn a_call_that_gets_no_answer_in_time_is_given_up_and_made_again() {
    let receiver = Receiver::start().await;
    let never = Gate::closed();
    receiver.reply(Reply::status(200).behind(&never));
    let app = calling(&receiver, "/", "timeout = \"500ms\"\nlease = \"6s\"")
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    let all = timeline(&app, "evt_1").await;
    assert_eq!(
        all["attempts"][0]["error"],
        "no answer within 500ms: result unknown"
    );
    assert_eq!(effect_keys(&receiver.requests()).len(), 1);
    app.db.verify().await;
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let receiver = Receiver::start().await;
    receiver.reply(Reply::status(429).header("Retry-After", "1"));
    let app = calling(&receiver, "/", "").start().await;
    put(&app, &paid("evt_1")).await;
    let requests = receiver.until_requests(2).await;
    assert!(requests[1].at - requests[0].at >= Duration::from_secs(1));
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    app.db.verify().await;
}

#[tokio::test]
async fn a_receiver_that_is_not_there_is_called_again_until_it_is() {
    let address = free_address();
    let lines = format!(
        "secrets = [{{ label = \"a\", value = {SECRET:?} }}]\non_unknown = \"retry\"\n{RETRY}"
    );
    let app = ledger()
        .http_handler("ledger", &format!("http://{address}/"), &lines)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    until("a call fails", async || {
        !verdicts(&app, "evt_1").await.is_empty()
    })
    .await;
    let all = timeline(&app, "evt_1").await;
    assert_eq!(
        all["attempts"][0]["error"],
        "not connected: the receiver got nothing"
    );
    let receiver = Receiver::start_on(address).await;
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    assert_eq!(receiver.requests().len(), 1);
    app.db.verify().await;
}

#[tokio::test]
async fn a_final_no_and_a_redirect_are_dead_at_once_and_no_redirect_is_followed() {
    let receiver = Receiver::start().await;
    let elsewhere = Receiver::start().await;
    let app = calling(&receiver, "/", "").start().await;
    for status in [400, 404, 410, 422, 301, 302, 307] {
        receiver.reply(Reply::status(status).header("Location", &elsewhere.url("/")));
        let key = format!("evt_{status}");
        put(&app, &paid(&key)).await;
        let outcome = app.until_outcome("stripe", &key, "ledger").await;
        assert_eq!(
            (&outcome["result"], &outcome["attempts"]),
            (&json!("dead"), &json!(1)),
            "{status}"
        );
        let reason = outcome["reason"].as_str().unwrap();
        assert!(reason.contains(&format!("HTTP {status}")), "{reason}");
    }
    assert_eq!(receiver.requests().len(), 7);
    assert!(elsewhere.requests().is_empty());
    app.db.verify().await;
}

#[tokio::test]
async fn no_more_calls_than_allowed_are_claimed_and_none_waits_in_a_transaction() {
    let receiver = Receiver::start().await;
    let answer = Gate::closed();
    receiver.always(Reply::status(200).behind(&answer));
    let app = calling(&receiver, "/", "concurrency = 4").start().await;
    let sender = Sender::to(&app);
    for n in 0..12 {
        assert_eq!(
            sender.send(&paid(&format!("evt_{n}"))).await,
            Some((200, false))
        );
    }
    receiver.until_requests(4).await;
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 4);
    assert_eq!(app.db.count("delivery WHERE state = 'ready'").await, 8);
    // Whatever was open when the calls were out comes to its end while they stay out.
    let then: SystemTime = app.db.one("SELECT clock_timestamp()").await;
    until("no transaction is open for a call's sake", async || {
        let sql =
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND xact_start < $1";
        app.db.rows(sql, &[&then]).await.is_empty()
    })
    .await;
    assert_eq!(receiver.requests().len(), 4);
    answer.open();
    until("all are done", async || app.db.count("outcome").await == 12).await;
    assert_eq!(receiver.requests().len(), 12);
    app.db.verify().await;
}
