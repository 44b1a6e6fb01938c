//! Bodies are read a part at a time: a batch of large ones is not held as a whole.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncehook::HandlerSpec;
use oncehook::dispatch::{Answer, Delivered, Function, HandlerError, HandlerKind, Work};
use serde_json::json;

use crate::crash::http::calling;
use crate::crash::proxied;
use crate::support::inbox::{Inbox, dispatch, event, every, quick, stripe_source};
use crate::support::{Action, Receiver, TestDb, until};

/// Just below a MiB, so that four are a part.
const PADDING: usize = 1_000_000;

/// Notes how many requests were read in the transaction so far.
struct Counter(Arc<Mutex<Vec<i64>>>);

#[async_trait]
impl Function for Counter {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        let read = "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_xact_all_tables WHERE relname ~ '^request_[0-9]{8}$'";
        let rows = work.query(read, &[]).await?;
        self.0.lock().unwrap().push(rows[0].get(0));
        assert!(event.body.len() > PADDING);
        Ok(Answer::Done)
    }
}

fn large(n: usize) -> serde_json::Value {
    event(
        &format!("evt_{n}"),
        "x",
        json!({"id": "ch_1", "padding": "x".repeat(PADDING)}),
    )
}

#[tokio::test]
async fn a_function_is_run_before_more_than_a_part_of_its_batch_is_read() {
    let db = Arc::new(TestDb::new().await);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = || {
        let code = HandlerKind::Function(Arc::new(Counter(Arc::clone(&seen))));
        quick(HandlerSpec::new("counter", every(), code))
    };
    let storing = Inbox::on(
        Arc::clone(&db),
        vec![stripe_source()],
        vec![handler()],
        None,
    )
    .await;
    for n in 0..9 {
        storing.put(&large(n)).await;
    }
    let inbox = Inbox::on(
        Arc::clone(&db),
        vec![stripe_source()],
        vec![handler()],
        Some(dispatch()),
    )
    .await;
    until("all are done", async || db.count("outcome").await == 9).await;
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.first(), Some(&4), "{seen:?}");
    inbox.db.verify().await;
}

#[tokio::test]
async fn calls_begin_before_more_than_a_part_of_their_claim_is_read() {
    let receiver = Receiver::start().await;
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = calling(&receiver, "/", "concurrency = 9")
        .on(db)
        .database_url(url)
        .start()
        .await;
    let toml = app.toml().to_owned();
    app.reconfigure(&toml.replace("[dispatch]", "[dispatch]\nenabled = false"));
    app.restart().await;
    for n in 0..9 {
        let answer = app.post_stripe("stripe", &large(n)).await;
        assert_eq!(answer.status(), 200, "{}", app.output());
    }
    // Four, four and one.
    for _ in 0..3 {
        proxy.arm("-- event_payloads:", Action::Delay(Duration::ZERO));
    }
    app.reconfigure(&toml);
    app.restart().await;
    proxy.until_fired(3).await;
    until("all are done", async || app.db.count("outcome").await == 9).await;
    let sizes: Vec<usize> = receiver.requests().iter().map(|r| r.body.len()).collect();
    assert!(sizes.iter().all(|size| *size > PADDING), "{sizes:?}");
    app.db.verify().await;
}
