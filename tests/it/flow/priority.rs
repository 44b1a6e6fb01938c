//! What is taken first, and that nothing is left behind.

use crate::crash::http::calling;
use crate::crash::{QUICK, begin_handling, metric, storing_ledger};
use crate::support::inbox::event;
use crate::support::{Receiver, until};
use serde_json::json;

use super::put_many;

#[tokio::test]
async fn the_lowest_moves_while_the_highest_is_under_full_load() {
    let lines = format!(
        "{QUICK}\nbatch = 10\npriority = {{ high = [\"*:charge.*\"], low = [\"*:report.*\"] }}"
    );
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", &lines)
        .env("ONCEHOOK_DISPATCH__CONNECTIONS", "1")
        .start()
        .await;
    for (kind, count) in [("report", 60), ("order", 60), ("charge", 300)] {
        for n in 0..count {
            let event = event(&format!("{kind}_{n}"), &format!("{kind}.made"), json!({}));
            assert_eq!(app.post_stripe("stripe", &event).await.status(), 200);
        }
    }
    let stored: Vec<i64> = app
        .db
        .all("SELECT count(*) FROM oncehook.delivery GROUP BY priority ORDER BY priority")
        .await;
    assert_eq!(stored, [300, 60, 60]);
    begin_handling(&mut app).await;
    until("all are done", async || {
        app.db.count("outcome").await == 420
    })
    .await;
    let among_the_first = async |count: i64, kind: &str| -> i64 {
        app.db
            .one(&format!(
                "SELECT count(*) FROM (SELECT e.type FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id
                  ORDER BY o.finished_at LIMIT {count}) first WHERE type = '{kind}.made'"
            ))
            .await
    };
    // 70, 20, 10 in a hundred; the oldest of all came last in the list.
    let (high, normal, low) = (
        among_the_first(200, "charge").await,
        among_the_first(200, "order").await,
        among_the_first(200, "report").await,
    );
    assert!((130..=150).contains(&high), "{high} {normal} {low}");
    assert!((30..=50).contains(&normal), "{high} {normal} {low}");
    assert!((10..=30).contains(&low), "{high} {normal} {low}");
}

/// A reload, or another node's configuration: priorities that this one would not give are taken too.
#[tokio::test]
async fn what_was_stored_under_other_priorities_is_taken_all_the_same() {
    let lines = format!("{QUICK}\npriority = \"low\"");
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", &lines)
        .start()
        .await;
    super::put_many(&app, "stripe", "evt", 30).await;
    assert_eq!(app.db.count("delivery WHERE priority = 2").await, 30);
    let toml = app
        .toml()
        .replace("priority = \"low\"", "priority = \"high\"");
    app.reconfigure(&toml);
    begin_handling(&mut app).await;
    until("all are done", async || app.db.count("outcome").await == 30).await;
}

/// The share that others do not need is not lost to a cap: a claim of the one place that it allows, drawn
/// for a priority of which nothing waits, is made again for the next one at once.
#[tokio::test]
async fn under_a_cap_the_lowest_gets_what_nobody_else_needs() {
    let receiver = Receiver::start().await;
    let lines = "max_in_flight = 1\npriority = { high = [\"*:payout.*\"], low = [\"*:charge.*\"] }";
    let app = calling(&receiver, "/", lines).start().await;
    put_many(&app, "stripe", "evt", 60).await;
    until("all are done", async || app.db.count("outcome").await == 60).await;
    // A claim that ends with nothing waits 50 ms. One in ten was drawn for the lowest: nine such each.
    let capped = metric(&app, "oncehook_claims_capped_total").await;
    assert!(
        capped.unwrap_or(0.0) < 240.0,
        "{capped:?} for 60 deliveries"
    );
}
