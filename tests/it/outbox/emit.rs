//! What `emit` promises while nothing goes wrong.

use std::sync::Arc;

use oncehook::dispatch::HandlerKind;
use oncehook::domain::Pattern;
use oncehook::provider::{self, OnConflict, Source};
use oncehook::{Answer, Delivered, Emit, Function, HandlerError, HandlerSpec, Work, async_trait};
use serde_json::json;

use crate::support::inbox::{Inbox, dispatch, event, quick, sql, stripe_source};
use crate::support::{TestDb, until};

use super::CHAIN;

fn internal(name: &str) -> Source {
    Source {
        name: name.into(),
        was: None,
        provider: provider::build("internal", &provider::Options::default()).unwrap(),
        secrets: Vec::new(),
        accept_modes: None,
        on_conflict: OnConflict::Ack,
    }
}

fn of(spec: HandlerSpec, pattern: &str) -> HandlerSpec {
    HandlerSpec {
        events: vec![Pattern::parse(pattern).unwrap()],
        ..spec
    }
}

fn chain() -> Vec<HandlerSpec> {
    vec![
        of(sql("first", "app.first"), "stripe:*"),
        of(sql("second", "app.second"), "orders:order.paid"),
        of(sql("third", "app.third"), "ledger:*"),
    ]
}

async fn start(setup: &str, handlers: Vec<HandlerSpec>) -> Inbox {
    let db = Arc::new(TestDb::new().await);
    db.execute(setup).await;
    let sources = vec![stripe_source(), internal("orders"), internal("ledger")];
    Inbox::on(db, sources, handlers, Some(dispatch())).await
}

fn paid(key: &str) -> serde_json::Value {
    event(key, "charge.succeeded", json!({"id": "ch_1"}))
}

async fn lines(inbox: &Inbox) -> Vec<String> {
    inbox
        .db
        .all("SELECT handler || ' ' || key FROM app.line ORDER BY 1")
        .await
}

async fn until_outcomes(inbox: &Inbox, count: i64) {
    until(&format!("{count} outcomes"), async || {
        inbox.db.count("outcome").await >= count
    })
    .await;
}

#[tokio::test]
async fn a_chain_of_three_is_handled_and_each_tells_its_cause() {
    let inbox = start(CHAIN, chain()).await;
    inbox.put(&paid("evt_1")).await;
    until_outcomes(&inbox, 3).await;
    assert_eq!(
        lines(&inbox).await,
        ["first evt_1", "second b%3Aevt_1", "third c%3Ab%253Aevt_1"]
    );
    assert_eq!(inbox.db.count("emitted").await, 0);
    let store = inbox.engine.store();
    let second = store.timeline("orders", "b:evt_1").await.unwrap();
    assert_eq!(second.event.state, "succeeded");
    assert_eq!(second.event.entity.as_deref(), Some("ch_1"));
    let cause = second.caused_by.unwrap();
    assert_eq!(
        (cause.source.as_str(), cause.key.as_str()),
        ("stripe", "evt_1")
    );
    // One correlation id from the request to the last of the chain.
    let first = inbox.timeline("evt_1").await;
    let ids: Vec<String> = inbox
        .db
        .all("SELECT DISTINCT correlation_id::text FROM oncehook.event")
        .await;
    assert_eq!(ids, [first.correlation_id.unwrap()]);
    inbox.db.verify().await;
}

#[tokio::test]
async fn what_a_failed_try_emitted_is_gone_with_it() {
    let inbox = start(CHAIN, chain()).await;
    inbox
        .db
        .execute("INSERT INTO app.broken VALUES ('evt_1')")
        .await;
    inbox.put(&paid("evt_1")).await;
    let (result, _) = inbox.until_outcome("evt_1", "first").await;
    assert_eq!(result, "dead");
    inbox.put(&paid("evt_2")).await;
    until_outcomes(&inbox, 4).await;
    let keys: Vec<String> = inbox
        .db
        .all("SELECT key FROM oncehook.event_key k JOIN oncehook.source s ON s.id = k.source_id WHERE s.name = 'orders'")
        .await;
    assert_eq!(keys, ["b%3Aevt_2"]);
}

#[tokio::test]
async fn an_application_emits_in_its_own_transaction() {
    let inbox = start(CHAIN, chain()).await;
    let client = inbox.db.client().await;
    client
        .batch_execute(
            "BEGIN; SELECT oncehook.emit('ledger', 'gone', 'entry.made', '{}'); ROLLBACK",
        )
        .await
        .unwrap();
    client
        .batch_execute("BEGIN; SELECT oncehook.emit('ledger', 'kept', 'entry.made', '{\"n\": 12345678901234567890}'); COMMIT")
        .await
        .unwrap();
    until_outcomes(&inbox, 1).await;
    assert_eq!(lines(&inbox).await, ["third kept"]);
    // The same again is a duplicate, other content a conflict, as for any sender.
    for body in ["{\"n\":12345678901234567890}", "{\"n\": 1}"] {
        client
            .execute(
                "SELECT oncehook.emit_bytes('ledger', 'kept', 'entry.made', $1)",
                &[&body.as_bytes()],
            )
            .await
            .unwrap();
    }
    until("both are known", async || {
        inbox.db.count("emitted").await == 0
    })
    .await;
    let timeline = inbox
        .engine
        .store()
        .timeline("ledger", "kept")
        .await
        .unwrap();
    assert_eq!((timeline.received_count, timeline.conflicts.len()), (3, 1));
    assert_eq!(lines(&inbox).await.len(), 1);
    inbox.db.verify().await;
}

#[tokio::test]
async fn what_cannot_be_emitted_is_said_at_once() {
    let inbox = start(CHAIN, chain()).await;
    let client = inbox.db.client().await;
    for (call, word) in [
        ("emit('nobody', 'k', 't', '{}')", "no source 'nobody'"),
        ("emit('stripe', 'k', 't', '{}')", "no source 'stripe'"),
        ("emit(NULL, 'k', 't', '{}')", "no source NULL"),
        ("emit('orders', '', 't', '{}')", "a key has 1 to 1024 bytes"),
        (
            "emit('orders', NULL, 't', '{}')",
            "a key has 1 to 1024 bytes",
        ),
        (
            "emit('orders', repeat('k', 1025), 't', '{}')",
            "a key has 1 to 1024 bytes",
        ),
        ("emit('orders', 'k', 't', NULL)", "a body is given"),
        (
            "emit_bytes('orders', 'k', 't', convert_to(repeat('x', 1048577), 'UTF8'))",
            "1 MiB at most",
        ),
        (
            "emit('orders', 'k', repeat('t', 1025), '{}')",
            "type and entity",
        ),
        (
            "emit('orders', 'k', 't', '{}', occurred_at => '-infinity')",
            "occurred_at is a moment",
        ),
    ] {
        let error = client
            .query(&format!("SELECT oncehook.{call}"), &[])
            .await
            .unwrap_err();
        let message = error.as_db_error().unwrap().message();
        assert!(message.contains(word), "{call}: {message}");
    }
    assert_eq!(inbox.db.count("emitted").await, 0);
}

#[tokio::test]
async fn an_internal_source_has_no_address() {
    let inbox = start(CHAIN, chain()).await;
    let client = reqwest::Client::new();
    let post = async |name: &str| {
        let sent = client
            .post(format!("http://{}/webhooks/{name}", inbox.public))
            .body("{}")
            .send();
        let answer = sent.await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (internal, unknown) = (post("orders").await, post("nobody").await);
    assert_eq!(internal.0, 404);
    assert_eq!(
        internal.1.replace("orders", "nobody"),
        unknown.1,
        "nothing tells that it exists"
    );
}

/// Emits under the key of its own event, then fails for good when told.
struct Emitter;

#[async_trait]
impl Function for Emitter {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        work.emit(&Emit {
            source: "ledger",
            key: &event.key,
            event_type: Some("entry.made"),
            body: &event.body,
            entity: event.entity.as_deref(),
            cause: Some(event.id),
            ..Emit::default()
        })
        .await?;
        Ok(match event.key.as_str() {
            "evt_bad" => Answer::Permanent("bad".into()),
            _ => Answer::Done,
        })
    }
}

#[tokio::test]
async fn a_function_emits_too() {
    let emitter = HandlerSpec::new(
        "emitter",
        vec![Pattern::parse("stripe:*").unwrap()],
        HandlerKind::Function(Arc::new(Emitter)),
    );
    let third = of(sql("third", "app.third"), "ledger:*");
    let inbox = start(CHAIN, vec![quick(emitter), third]).await;
    inbox.put(&paid("evt_bad")).await;
    inbox.put(&paid("evt_1")).await;
    until_outcomes(&inbox, 3).await;
    assert_eq!(lines(&inbox).await, ["third evt_1"]);
    let timeline = inbox
        .engine
        .store()
        .timeline("ledger", "evt_1")
        .await
        .unwrap();
    assert_eq!(timeline.caused_by.unwrap().key, "evt_1");
}
