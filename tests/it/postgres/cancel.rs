//! Callers that give up at any point leave no transaction behind.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use oncehook::engine::Engine;
use oncehook::ingest::{Origin, StoredRequest, Submission};
use oncehook::provider::{Headers, Request};
use serde_json::{Value, json};

use crate::dispatch::LEDGER;
use crate::support::inbox::{Inbox, event, sql};
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{RawHttp, until};

/// What the HTTP layer makes of a signed event.
fn submission(engine: &Engine, event: &Value) -> Submission {
    let body = event.to_string().into_bytes();
    let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), &body);
    let headers: Headers = [("stripe-signature", signature.as_bytes())]
        .into_iter()
        .collect();
    let request = Request {
        method: "POST",
        target: "/webhooks/stripe",
        headers: &headers,
        body: &body,
    };
    let active = engine.source("stripe").unwrap();
    let provider = &active.source.provider;
    let verified = provider
        .verify(&request, &active.source.secrets, jiff::Timestamp::now())
        .unwrap();
    let items = provider.unwrap(&request, &verified);
    Submission {
        source_id: active.id,
        source: active.source.clone(),
        request: StoredRequest {
            body: body.clone().into(),
            headers: b"[]".to_vec(),
            method: "POST".to_owned(),
            path: "/webhooks/stripe".to_owned(),
            query: None,
            peer: None,
            secret_label: verified.secret_label.clone(),
            correlation_id: uuid::Uuid::new_v4(),
        },
        items,
        routes: Vec::new(),
        origin: Origin::Request,
    }
}

fn numbered(n: usize) -> Value {
    event(
        &format!("evt_{n}"),
        "charge.succeeded",
        json!({"id": "ch_1", "amount": n}),
    )
}

async fn until_none_idle_in_transaction(inbox: &Inbox) {
    until("no connection is left inside a transaction", async || {
        let open = "pg_catalog.pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        inbox.db.count(open).await == 0
    })
    .await;
}

#[tokio::test]
async fn f71_submissions_dropped_at_any_point_are_stored_whole_and_leave_no_transaction() {
    let inbox = Inbox::start(LEDGER, vec![sql("ledger", "app.book")]).await;
    // Dropped after so many polls; the write has been under way for longer each time.
    for n in 0..100 {
        let from = inbox.engine.source("stripe").unwrap();
        let mut answer = pin!(
            inbox
                .engine
                .submit(&from, submission(&inbox.engine, &numbered(n)))
        );
        for _ in 0..=n {
            if let Poll::Ready(answer) = poll!(&mut answer) {
                drop(answer.unwrap());
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    inbox.put(&numbered(1_000)).await;
    // Seen from elsewhere at once, and so are those that nobody waited for.
    assert_eq!(inbox.db.count("event WHERE key = 'evt_1000'").await, 1);
    until("all are handled", async || {
        inbox.db.count("app.ledger").await == 101
    })
    .await;
    assert_eq!(inbox.db.count("event").await, 101);
    until_none_idle_in_transaction(&inbox).await;
}

#[tokio::test]
async fn f71_senders_that_hang_up_leave_no_transaction() {
    let inbox = Inbox::start(LEDGER, vec![sql("ledger", "app.book")]).await;
    for n in 0..60 {
        let body = numbered(n).to_string();
        let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), body.as_bytes());
        let mut raw = RawHttp::connect(inbox.public).await;
        let request = format!(
            "POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nStripe-Signature: {signature}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert!(raw.send(request).await);
        // A little later each time, then gone without reading.
        tokio::time::sleep(Duration::from_micros(100 * n as u64)).await;
    }
    inbox.put(&numbered(1_000)).await;
    assert_eq!(inbox.db.count("event WHERE key = 'evt_1000'").await, 1);
    until("every event that was stored is handled once", async || {
        let sql = "SELECT NOT EXISTS (SELECT FROM oncehook.delivery)
            AND (SELECT count(*) FROM app.ledger) = (SELECT count(*) FROM oncehook.event)";
        inbox.db.one(sql).await
    })
    .await;
    until_none_idle_in_transaction(&inbox).await;
}
