//! Keys and runs of operations in the database: renewed, begun again, emptied; and what `verify` says of it.

use std::collections::BTreeSet;

use crate::support::{Received, Receiver, Reply, TestDb, until};

use super::wire::{Answer, Client, app, booking, calling};

const BODY: &str = r#"{"amount": 5}"#;

/// As if the key's time were over.
async fn expire(db: &TestDb) {
    db.execute("UPDATE oncehook.event_key SET expires_at = now() - interval '1 second'")
        .await;
}

/// Effect keys of the payments that a receiver was asked for.
fn effect_keys(receiver: &Receiver) -> Vec<String> {
    let header = |request: &Received| request.header("idempotency-key").unwrap().to_owned();
    receiver.requests().iter().map(header).collect()
}

/// The same intent from ten clients at once.
async fn ten(client: &Client, key: &'static str) -> Vec<Answer> {
    let sent = (0..10).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.submit("pay", key, BODY).await })
    });
    let mut answers = Vec::new();
    for task in sent.collect::<Vec<_>>() {
        answers.push(task.await.unwrap());
    }
    answers
}

#[tokio::test]
async fn an_expired_key_names_one_new_intent_under_a_new_effect_key() {
    let receiver = Receiver::start().await;
    receiver.always(Reply::status(201).body("{}"));
    let lines = "on_unknown = \"hold\"\nwait = \"20s\"";
    let app = app(&calling("pay", &receiver, lines)).start().await;
    let client = Client::of(&app);
    assert_eq!(client.submit("pay", "k", BODY).await.status, 201);
    let other = client.submit("pay", "k", r#"{"amount": 6}"#).await;
    assert_eq!(other.status, 409, "{other:?}");
    expire(&app.db).await;
    let answers = ten(&client, "k").await;
    assert!(answers.iter().all(|a| a.status == 201), "{answers:?}");
    let keys = effect_keys(&receiver);
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 2, "{keys:?}");
    let other = client.submit("pay", "k", r#"{"amount": 6}"#).await;
    assert_eq!(other.status, 409, "{other:?}");
    assert_eq!(app.db.count("event").await, 2);
    assert_eq!(app.db.count("conflict").await, 2);
    app.db.verify().await;
}

#[tokio::test]
async fn a_key_is_not_renewed_while_its_intent_is_uncertain() {
    let receiver = Receiver::start().await;
    receiver.always(Reply::cut());
    let app = app(&calling("pay", &receiver, "on_unknown = \"hold\""))
        .start()
        .await;
    let client = Client::of(&app);
    assert_eq!(client.submit("pay", "k", BODY).await.status, 202);
    client.until_state("pay", "k", "uncertain").await;
    expire(&app.db).await;
    // Nor when the call can no longer be under way.
    app.db
        .execute("UPDATE oncehook.attempt SET in_flight_until = now() - interval '1 second'")
        .await;
    let again = client.submit("pay", "k", BODY).await;
    assert_eq!(
        (again.status, again.json()["state"].as_str()),
        (202, Some("uncertain"))
    );
    assert_eq!(app.db.count("event").await, 1);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn ten_retries_of_a_failure_without_effect_begin_one_run() {
    let app = app(&booking("pay", "wait = \"20s\"")).start().await;
    app.db
        .execute(
            "CREATE FUNCTION app.closed() RETURNS trigger LANGUAGE plpgsql AS $f$
             BEGIN RAISE EXCEPTION 'closed' USING ERRCODE = 'OH001'; END $f$;
             CREATE TRIGGER closed BEFORE INSERT ON app.payment FOR EACH ROW EXECUTE FUNCTION app.closed()",
        )
        .await;
    let client = Client::of(&app);
    let refuse = client.submit("pay", "k", BODY).await;
    assert_eq!(refuse.status, 500, "{refuse:?}");
    app.db.execute("DROP TRIGGER closed ON app.payment").await;
    let answers = ten(&client, "k").await;
    assert!(answers.iter().all(|a| a.status == 201), "{answers:?}");
    let bodies: BTreeSet<&str> = answers.iter().map(|a| a.body.as_str()).collect();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    assert_eq!(app.db.count("app.payment").await, 1);
    assert_eq!(app.db.count("outcome").await, 2);
    let generations: Vec<i16> = app.db.all("SELECT generation FROM oncehook.outcome").await;
    assert_eq!(generations, [0, 0]);
    app.db.verify().await;
}

#[tokio::test]
async fn a_kept_failure_is_answered_again_and_not_run() {
    let lines = "wait = \"20s\"\non_failure = \"keep\"";
    let app = app(&booking("pay", lines)).start().await;
    let client = Client::of(&app);
    let first = client.submit("pay", "k", r#"{"amount": -1}"#).await;
    assert_eq!(first.status, 500, "{first:?}");
    let again = client.submit("pay", "k", r#"{"amount": -1}"#).await;
    assert_eq!(again.kept(), first.kept());
    assert!(again.replayed());
    assert_eq!(app.db.count("outcome").await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn an_answer_whose_time_is_over_is_410_and_other_content_still_409() {
    let app = app(&booking("pay", "wait = \"20s\"")).start().await;
    let client = Client::of(&app);
    assert_eq!(client.submit("pay", "k", BODY).await.status, 201);
    app.db
        .execute("UPDATE oncehook.response SET expires_at = now() - interval '1 second'")
        .await;
    let gone = client.submit("pay", "k", BODY).await;
    assert_eq!(gone.status, 410, "{gone:?}");
    assert!(gone.is_problem("idempotency-response-expired"), "{gone:?}");
    let other = client.submit("pay", "k", r#"{"amount": 6}"#).await;
    assert_eq!(other.status, 409, "{other:?}");
    assert_eq!(app.db.count("app.payment").await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn the_effect_of_an_answer_that_cannot_be_stored_is_undone() {
    let app = app(&booking("pay", "wait = \"20s\"")).start().await;
    let client = Client::of(&app);
    for (key, answer) in [
        ("status", "'status', 99"),
        ("header", "'headers', jsonb_build_object('X', E'a\\nb')"),
        ("long", "'body_text', repeat('x', 8388609)"),
    ] {
        app.db
            .execute(&format!(
                "CREATE OR REPLACE FUNCTION app.pay(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $f$
                 BEGIN
                   INSERT INTO app.payment (key, body) VALUES (event.key, '{{}}');
                   RETURN jsonb_build_object('result', 'done', {answer});
                 END $f$"
            ))
            .await;
        let told = client.submit("pay", key, BODY).await;
        assert_eq!(told.status, 500, "{key}: {told:?}");
    }
    assert_eq!(app.db.count("app.payment").await, 0);
    until("all have their answers", async || {
        app.db.count("response").await == 3
    })
    .await;
    app.db.verify().await;
}
