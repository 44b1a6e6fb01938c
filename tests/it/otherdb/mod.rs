//! `sql` handlers with a database of their own. The judge is plain inserts there: what was done twice is there
//! twice.

mod answers;
mod crash;
mod flow;
mod install;
mod outage;
mod silent;

use oncehook::store::{Settings, ledger};
use serde_json::Value;

use crate::crash::{POLL, QUICK, timeline};
use crate::support::{AppBuilder, Node, PgProxy, TestApp, TestDb};

/// Books without any conflict clause, and answers what no second run would.
const BOOKS: &str = "
CREATE SCHEMA app;
CREATE TABLE app.ledger (key text NOT NULL, effect_key text NOT NULL, run int NOT NULL, attempt int NOT NULL,
                         booking uuid NOT NULL DEFAULT gen_random_uuid(), at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS jsonb LANGUAGE sql AS $$
  INSERT INTO app.ledger (key, effect_key, run, attempt) VALUES (event.key, event.effect_key, event.run, event.attempt)
  RETURNING jsonb_build_object('result', 'done', 'resource', 'Buchung ' || booking);
$$;
CREATE FUNCTION app.book_behind_barrier(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE answer jsonb := app.book(event);
BEGIN
  PERFORM pg_advisory_xact_lock_shared(7001);
  RETURN answer;
END $$;
";

async fn install(db: &TestDb) {
    ledger::install(&Settings::parse(&db.url).unwrap())
        .await
        .unwrap();
}

/// A user's database with books and the ledger.
async fn books() -> TestDb {
    prepared(TestDb::blank().await).await
}

/// The same on another cluster.
async fn books_on(maintenance: &str) -> TestDb {
    prepared(TestDb::blank_on(maintenance).await).await
}

async fn prepared(db: TestDb) -> TestDb {
    install(&db).await;
    db.execute(BOOKS).await;
    db
}

/// Those with a proxy in front.
async fn proxied_books() -> (TestDb, PgProxy) {
    let other = books().await;
    let proxy = PgProxy::start(&other.url).await;
    (other, proxy)
}

/// A node with handler `ledger`, which calls a function in the database of a URL.
fn app(call: &str, url: &str, lines: &str) -> AppBuilder {
    TestApp::builder().stripe("stripe").toml(POLL).sql_handler(
        "ledger",
        call,
        &format!("database = {url:?}\n{lines}"),
    )
}

/// The same with the books, and retries within milliseconds.
fn booking(url: &str) -> AppBuilder {
    app("app.book", url, QUICK)
}

async fn booked(other: &TestDb, key: &str) -> i64 {
    other
        .count(&format!("app.ledger WHERE key = '{key}'"))
        .await
}

/// Waits for the outcome: the only one, succeeded, with the effect there once, and the answer that this one gave.
async fn until_booked_once(node: &Node, other: &TestDb, key: &str) -> Value {
    let outcome = node.until_outcome("stripe", key, "ledger").await;
    let all = timeline(node, key).await;
    assert_eq!(booked(other, key).await, 1, "once there: {all}");
    assert_eq!(outcome["result"], "succeeded", "{outcome}");
    assert_eq!(all["outcomes"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!(all["deliveries"].as_array().unwrap().len(), 0, "{all}");
    let booking: String = other
        .one(&format!(
            "SELECT 'Buchung ' || booking FROM app.ledger WHERE key = '{key}'"
        ))
        .await;
    assert_eq!(
        outcome["resource"],
        booking.as_str(),
        "the answer of the run that booked"
    );
    outcome
}

/// How often the answer was taken from the ledger.
async fn repeats(other: &TestDb) -> i32 {
    other.one("SELECT repeats FROM oncehook.applied").await
}
