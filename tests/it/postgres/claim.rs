//! The claim statement where the planner is made to do its worst.

use crate::crash::{
    Barrier, QUICK, begin_handling, ledger, paid, put, storing_ledger, until_booked_once,
    until_metric,
};
use crate::support::{TestApp, TestDb, until};

/// Copies of `evt_1` and its deliveries, made in the table: it is not the way in that is tested.
async fn multiply(app: &TestApp, copies: i32) {
    app.db
        .execute(&format!(
            "WITH more AS (
               INSERT INTO oncehook.event (id, request_id, item_offset, item_length, source_id, key, correlation_id, routes)
               SELECT oncehook.uuid7(now()), request_id, item_offset, item_length, source_id, 'evt_copy', correlation_id, routes
                 FROM oncehook.event, generate_series(1, {copies}) n WHERE key = 'evt_1' RETURNING id)
             INSERT INTO oncehook.delivery (event_id, handler_id) SELECT m.id, h.id FROM more m, oncehook.handler h"
        ))
        .await;
}

#[tokio::test]
async fn f68_under_forced_nested_loops_exactly_the_quota_is_leased() {
    let db = TestDb::new().await;
    for setting in [
        "enable_hashjoin",
        "enable_mergejoin",
        "enable_material",
        "enable_memoize",
        "enable_hashagg",
        "enable_bitmapscan",
        "enable_indexscan",
        "enable_indexonlyscan",
    ] {
        let name = &db.name;
        db.execute_outside(&format!("ALTER DATABASE {name} SET {setting} = off"))
            .await;
    }
    let lines = format!("{QUICK}\nbatch = 7");
    let mut app = storing_ledger()
        .setup(crate::crash::BOOK_BEHIND_BARRIER)
        .sql_handler("ledger", "app.book_behind_barrier", &lines)
        // One batch at a time.
        .env("ONCEHOOK_DISPATCH__CONNECTIONS", "1")
        .on(db)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    multiply(&app, 999).await;
    // The statistics still speak of a nearly empty table, so that it seems cheap to look for the
    // due rows once per row of it.
    app.db
        .execute("UPDATE pg_class SET relpages = 100, reltuples = 1 WHERE oid = 'oncehook.delivery'::regclass")
        .await;
    let barrier = Barrier::closed(&app.db).await;
    begin_handling(&mut app).await;
    barrier.until_waited(&app.db).await;
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 7);
    assert_eq!(app.db.count("delivery WHERE state = 'ready'").await, 993);
    barrier.open().await;
    until("all are done", async || app.db.count("delivery").await == 0).await;
    assert_eq!(app.db.count("app.ledger").await, 1_000);
    assert!(
        !app.output().contains("delivery_claim changed"),
        "{}",
        app.output()
    );
}

/// Short: what ten minutes of it do to the claim's time belongs to the proof, not to this suite.
#[tokio::test]
async fn f75_work_goes_on_under_an_old_snapshot_and_the_gauges_show_it() {
    let mut app = ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .start()
        .await;
    let mut old = app.db.client().await;
    let transaction = old
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    let seen = "SELECT count(*) FROM oncehook.delivery";
    assert_eq!(
        transaction
            .query_one(seen, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
    put(&app, &paid("evt_1")).await;
    for round in 1..=3 {
        multiply(&app, 200).await;
        until("they are done", async || {
            app.db.count("app.ledger").await == 1 + 200 * round
        })
        .await;
    }
    assert_eq!(
        transaction
            .query_one(seen, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
    // The numbers are read at the start and every 15 s.
    until("the dead rows are counted", async || {
        let dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'oncehook.delivery'::regclass";
        app.db.one::<i64>(dead).await >= 600
    })
    .await;
    app.restart().await;
    until_metric(&app, "oncehook_oldest_snapshot_seconds", |age| age > 0.0).await;
    until_metric(&app, "oncehook_delivery_dead_rows", |rows| rows >= 600.0).await;
    transaction.rollback().await.unwrap();
    put(&app, &paid("evt_2")).await;
    until_booked_once(&app, &app.db, "evt_2").await;
}
