//! Outcomes that a node of a version before operations has written, and keys that are renewed while a client waits.

use crate::support::TestApp;

use super::wire::{Client, app, booking, send};

const BODY: &str = r#"{"amount": 5}"#;

/// A node that carries nothing out.
async fn idle(lines: &str) -> TestApp {
    let toml = booking("pay", lines) + "[dispatch]\nenabled = false\n";
    app(&toml).start().await
}

/// Ends what is under way as the version before did: it knows no answers.
async fn end_as_before(app: &TestApp, result: &str) {
    app.db
        .execute(&format!(
            "WITH ended AS (DELETE FROM oncehook.delivery RETURNING event_id, handler_id, run, generation)
             INSERT INTO oncehook.outcome (event_id, handler_id, run, generation, result, decided_by, resource, attempts, finished_at)
             SELECT event_id, handler_id, run, generation, '{result}', 'handler', 'pay_1', 1, now() FROM ended"
        ))
        .await;
}

#[tokio::test]
async fn an_outcome_without_an_answer_has_one_made_of_it_the_same_each_time() {
    let app = idle("wait = \"20s\"\non_failure = \"keep\"").await;
    let client = Client::of(&app);
    for (result, status) in [
        ("succeeded", 200),
        ("skipped", 200),
        ("failed", 422),
        ("dead", 500),
        ("cancelled", 500),
    ] {
        let waits = tokio::spawn(send(client.intent("pay", result, BODY)));
        crate::support::until("it is reserved", async || {
            app.db.count("delivery").await == 1
        })
        .await;
        end_as_before(&app, result).await;
        let first = waits.await.unwrap();
        assert_eq!(first.status, status, "{result}: {first:?}");
        assert_eq!(first.json()["result"], result, "{first:?}");
        assert_eq!(first.json()["resource"], "pay_1", "{first:?}");
        let again = client.submit("pay", result, BODY).await;
        assert_eq!(again.kept(), first.kept());
        assert!(again.replayed());
        let path = format!("/v1/operations/pay/keys/{result}");
        let shown = client.get(&path).await.json();
        assert_eq!(shown["response"]["body"], first.body, "{shown}");
    }
    // Its time passes as that of any other.
    app.db
        .execute("UPDATE oncehook.handler SET keep_response = interval '1 hour'; UPDATE oncehook.outcome SET finished_at = now() - interval '2 hours'")
        .await;
    let gone = client.submit("pay", "succeeded", BODY).await;
    assert!(gone.is_problem("idempotency-response-expired"), "{gone:?}");
    assert_eq!(gone.status, 410);
}

#[tokio::test]
async fn a_failure_without_an_answer_begins_again() {
    let app = idle("wait = \"0s\"").await;
    let client = Client::of(&app);
    assert_eq!(client.submit("pay", "k", BODY).await.status, 202);
    end_as_before(&app, "dead").await;
    let again = client.submit("pay", "k", BODY).await;
    assert_eq!(again.status, 202, "{again:?}");
    assert_eq!(app.db.count("delivery WHERE run = 2").await, 1);
}

#[tokio::test]
async fn a_client_whose_key_is_renewed_while_it_waits_is_not_told_of_the_other_intent() {
    let app = idle("wait = \"20s\"").await;
    let client = Client::of(&app);
    let other = r#"{"amount": 6}"#;
    let waits = tokio::spawn(send(client.intent("pay", "k", BODY)));
    let until_reserved = async |intents: i64| {
        crate::support::until("it is reserved", async || {
            app.db.count("delivery").await == intents
        })
        .await;
    };
    until_reserved(1).await;
    // Meanwhile the first ends, its key expires and is another intent's, which is done: in one step, so that the
    // client that waits sees only what came of it.
    let begun = client
        .intent("pay", "later", other)
        .header("Prefer", "respond-async");
    assert_eq!(send(begun).await.status, 202);
    until_reserved(2).await;
    app.db
        .execute(
            "BEGIN;
             UPDATE oncehook.event SET key = 'local:k' WHERE key = 'local:later';
             UPDATE oncehook.event_key k SET event_id = l.event_id, raw_digest = l.raw_digest,
                    canonical_digest = l.canonical_digest, generation = 1
               FROM oncehook.event_key l WHERE k.key = 'local:k' AND l.key = 'local:later';
             DELETE FROM oncehook.event_key WHERE key = 'local:later';",
        )
        .await;
    // The same connection: the transaction is open.
    end_as_before(&app, "succeeded").await;
    app.db.execute("COMMIT").await;
    let told = waits.await.unwrap();
    assert_eq!(told.status, 503, "{told:?}");
    assert!(told.is_problem("reserve-unavailable"), "{told:?}");
    // It comes again and is told what its key names now.
    let again = client.submit("pay", "k", BODY).await;
    assert_eq!(again.status, 409, "{again:?}");
    assert_eq!(client.submit("pay", "k", other).await.status, 200);
}
