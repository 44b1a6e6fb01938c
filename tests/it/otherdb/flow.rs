//! Lanes, `apply_if_newer` and caps with a database elsewhere.

use serde_json::json;

use crate::crash::{Barrier, QUICK, put};
use crate::support::bouncer::PgBouncer;
use crate::support::inbox::event;
use crate::support::{Action, until};

use super::{app, books, proxied_books, until_booked_once};

#[tokio::test]
async fn a_lane_keeps_its_order_over_a_lost_commit_and_skips_what_is_older() {
    let (other, proxy) = proxied_books().await;
    let lines =
        format!("lane = \"entity\"\napply_if_newer = \"json:/data/object/version\"\n{QUICK}");
    let app = app("app.book", &proxy.url(&other.name), &lines)
        .start()
        .await;
    proxy.arm_after("-- ledger_answer:", "COMMIT", Action::CutAfter);
    for (key, version) in [("a", 1), ("b", 3), ("c", 2), ("d", 4)] {
        put(
            &app,
            &event(key, "x", json!({"id": "ch_1", "version": version})),
        )
        .await;
    }
    let outcome = app.until_outcome("stripe", "d", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    let keys: Vec<String> = other.all("SELECT key FROM app.ledger ORDER BY at").await;
    assert_eq!(keys, ["a", "b", "d"]);
    let skipped = app.until_outcome("stripe", "c", "ledger").await;
    assert_eq!(skipped["result"], "skipped", "{skipped}");
    // The answer out of the ledger counts as applied, as the lost one would have.
    assert_eq!(app.db.count("latest WHERE version = 4").await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn caps_over_all_nodes_bound_what_is_open_there() {
    let other = books().await;
    let lines = format!("max_in_flight = 2\n{QUICK}");
    let mut app = app("app.book_behind_barrier", &other.url, &lines)
        .start()
        .await;
    let second = app.another_node().await;
    let barrier = Barrier::closed(&other).await;
    for n in 0..6 {
        let node = if n % 2 == 0 { &*app } else { &second };
        put(
            node,
            &event(&format!("evt_{n}"), "x", json!({"id": "ch_1"})),
        )
        .await;
    }
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
    until("two are at work", async || {
        other.one::<i64>(open).await == 2
    })
    .await;
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 2);
    barrier.open().await;
    until("all are done", async || app.db.count("outcome").await == 6).await;
    assert_eq!(other.count("app.ledger").await, 6);
    app.db.verify().await;
}

#[tokio::test]
async fn behind_a_pooler_with_fewer_sessions_each_effect_is_there_once() {
    let other = books().await;
    let Some(pooler) = PgBouncer::start(&other, "transaction", 2).await else {
        return;
    };
    let app = app("app.book", &pooler.url(&other.name), QUICK)
        .start()
        .await;
    for n in 0..40 {
        put(
            &app,
            &event(&format!("evt_{n}"), "x", json!({"id": "ch_1"})),
        )
        .await;
    }
    for n in 0..40 {
        until_booked_once(&app, &other, &format!("evt_{n}")).await;
    }
    assert_eq!(app.db.count("attempt").await, 0, "no try failed");
}
