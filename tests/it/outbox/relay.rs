//! How emitted events are taken from the outbox.

use crate::crash::{begin_handling, metric, until_metric};
use crate::support::{Action, until};

use super::crash::{chained, each_once, stored};

/// A row as whoever may insert can write it, without `emit`.
fn row(columns: &str, values: &str) -> String {
    format!(
        "INSERT INTO oncehook.emitted (source_id, body, correlation_id, {columns})
         SELECT id, '{{}}', gen_random_uuid(), {values} FROM oncehook.source WHERE name = 'ledger'"
    )
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_kept_and_told_and_in_nobodys_way() {
    let app = chained().start().await;
    let rows = [
        // Too long for a key once it is escaped; times that are none, or that none of ours can hold.
        row("key", "repeat('%', 1024)"),
        row(
            "key, type, occurred_at",
            "'early', 'entry.made', '-infinity'",
        ),
        row("key, type, occurred_at", "'late', 'entry.made', 'infinity'"),
        row(
            "key, type, occurred_at",
            "'old', 'entry.made', '4713-01-01 BC'",
        ),
        row("key, type", "'good', 'entry.made'"),
    ];
    app.db.execute(&rows.join(";")).await;
    let outcome = app.until_outcome("ledger", "good", "third").await;
    assert_eq!(outcome["result"], "succeeded");
    for key in ["early", "late", "old"] {
        let outcome = app.until_outcome("ledger", key, "third").await;
        assert_eq!(outcome["result"], "succeeded", "{key}");
    }
    until("the outbox is empty", async || {
        app.db.count("emitted").await == 0
    })
    .await;
    let unreadable = app.db.count("event WHERE state = 'unreadable'").await;
    assert_eq!(unreadable, 1);
    until_metric(&app, "oncehook_events_unreadable_total", |n| n >= 1.0).await;
    until_metric(&app, "oncehook_events_accepted_total", |n| n >= 5.0).await;
    assert!(
        app.output().contains("a verified event cannot be read"),
        "{}",
        app.output()
    );
    app.db.verify().await;
}

/// What nobody will store is told: a source that was taken out of the configuration while something emits to it.
#[tokio::test]
async fn events_of_a_source_that_no_node_knows_are_counted_and_said() {
    let mut app = chained().start().await;
    app.db
        .execute(
            "INSERT INTO oncehook.source (name, first_name, recipe) SELECT 'gone', 'gone', recipe FROM oncehook.source WHERE name = 'ledger';
             INSERT INTO oncehook.emitted (source_id, key, body, correlation_id, emitted_at)
             SELECT id, 'lost', '{}', gen_random_uuid(), now() - interval '1 hour' FROM oncehook.source WHERE name = 'gone'",
        )
        .await;
    // This one is on its way.
    app.db
        .execute(&row("key, lease_until", "'taken', 'infinity'"))
        .await;
    // Gauges are read at the start.
    app.restart().await;
    until_metric(&app, "oncehook_emitted_oldest_seconds", |s| s >= 3_600.0).await;
    let unknown = until_metric(&app, "oncehook_emitted_unknown_source", |n| n >= 1.0).await;
    assert!((unknown - 1.0).abs() < 0.5, "{unknown}");
    app.until_logged("emitted events wait for sources that this node does not know")
        .await;
    app.db.execute("DELETE FROM oncehook.emitted").await;
    app.restart().await;
    until_metric(&app, "oncehook_emitted_oldest_seconds", |s| s == 0.0).await;
    until_metric(&app, "oncehook_emitted_unknown_source", |n| n == 0.0).await;
}

#[tokio::test]
async fn no_batch_holds_more_than_4_mib_unless_one_event_does() {
    let mut app = chained().start().await;
    app.kill9();
    let large = "(source_id, key, type, body, correlation_id)
         SELECT s.id, 'n' || n, 'entry.made', convert_to(repeat('x', CASE n WHEN 5 THEN 5 << 20 ELSE 1 << 20 END), 'UTF8'), gen_random_uuid()
           FROM oncehook.source s, generate_series(1, 14) n WHERE s.name = 'ledger'";
    app.db
        .execute(&format!("INSERT INTO oncehook.emitted {large}"))
        .await;
    app.restart().await;
    until("all are stored", async || {
        app.db.count("emitted").await == 0
    })
    .await;
    // One transaction, one batch.
    let batches: Vec<i64> = app
        .db
        .all("SELECT sum(octet_length(body)) >> 20 FROM oncehook.request WHERE method = 'EMIT' GROUP BY xmin ORDER BY min(id::text)")
        .await;
    assert_eq!(batches, [4, 5, 4, 4, 1]);
    app.db.verify().await;
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_found_and_told_as_what_it_is() {
    let (mut app, proxy) = stored().await;
    proxy.arm_after("emitted_stored:", "COMMIT", Action::CutAfter);
    begin_handling(&mut app).await;
    proxy.until_fired(1).await;
    each_once(&app.db, 1).await;
    // Of both links of the chain, each once, and nothing else is said of them.
    until_metric(&app, "oncehook_events_accepted_total", |n| n >= 2.0).await;
    let said = app.output();
    for (metric_name, sum) in [
        ("oncehook_events_accepted_total", Some(2.0)),
        ("oncehook_events_duplicate_total", None),
    ] {
        let is = metric(&app, metric_name).await.filter(|n| *n > 0.0);
        assert_eq!(is, sum, "{metric_name}: {said}");
    }
    assert!(!said.contains("not stored"), "{said}");
    assert!(said.contains("what was emitted is stored"), "{said}");
    assert_eq!(app.db.count("receipt").await, 0);
}
