//! Faults seen in public, as tests: what others lost, doubled, leaked or refused, this does not.
//!
//! The number in a test's name is the fault's; `docs/faults.md` lists all of them with their
//! tests. The senders are the real presets, the sockets and the PostgreSQL are real too.

mod acknowledgement;
mod batches;
mod calls;
mod handling;
mod identity;
mod limits;
mod map;
mod privacy;
mod proxies;
mod secrets;
mod signature;

use std::sync::Arc;

use oncehook::provider::Source;

use crate::support::inbox::{self, Inbox};
use crate::support::{TestDb, until};

use calls::Call;

/// The user's own table and function: a plain insert, without conflict clause.
pub(super) const LEDGER: &str = "
CREATE SCHEMA app;
CREATE TABLE app.ledger (source text, key text, body bytea);
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$
  INSERT INTO app.ledger VALUES (event.source, event.key, event.body) $$;";

/// A node with every preset as a source and a handler that books every event.
async fn start() -> Inbox {
    start_with(calls::sources()).await
}

/// The same with these sources.
async fn start_with(sources: Vec<Source>) -> Inbox {
    let db = Arc::new(TestDb::new().await);
    db.execute(LEDGER).await;
    let ledger = inbox::sql("ledger", "app.book");
    Inbox::on(db, sources, vec![ledger], Some(inbox::dispatch())).await
}

/// Waits until so many events are booked and nothing is left to do.
async fn until_booked(db: &TestDb, count: i64) {
    until(&format!("{count} events are booked"), async || {
        db.count("delivery").await == 0 && db.count("app.ledger").await == count
    })
    .await;
}

/// Rows that an accepted request leaves: `request`, `event_key`, `event`.
async fn stored(db: &TestDb) -> [i64; 3] {
    [
        db.count("request").await,
        db.count("event_key").await,
        db.count("event").await,
    ]
}

/// State of the event under a key, as stored; `None` when it is to be run.
async fn state(db: &TestDb, key: &str) -> Option<String> {
    let rows = db
        .rows("SELECT state FROM oncehook.event WHERE key = $1", &[&key])
        .await;
    assert_eq!(rows.len(), 1, "events under {key}");
    rows[0].get(0)
}

/// Sends all of them at once, each on a connection of its own; the answers in order.
async fn at_once(
    address: std::net::SocketAddr,
    calls: Vec<Call>,
) -> Vec<crate::support::raw::RawResponse> {
    let sending: Vec<_> = calls
        .into_iter()
        .map(|call| tokio::spawn(async move { call.to(address).await }))
        .collect();
    let mut answers = Vec::new();
    for one in sending {
        answers.push(one.await.unwrap());
    }
    answers
}
