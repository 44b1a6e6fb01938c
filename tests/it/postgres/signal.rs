//! The connection that hears wake-ups comes and goes; polling is the truth.

use std::time::Instant;

use crate::crash::{QUICK, booked, paid, put, storing_ledger, until_booked_once};
use crate::support::{Node, TestApp, TestDb, until, until_some};

/// The backends that listen.
async fn listeners(db: &TestDb) -> Vec<i32> {
    db.all("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^(LISTEN|NOTIFY) oncehook_work'")
        .await
}

/// One node that only receives, and one that handles; returns the latter, and who listens for it.
async fn receiver_and_worker() -> (TestApp, Node, i32) {
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .env("RUST_LOG", "oncehook=debug")
        .start()
        .await;
    let receivers = until_some("it listens", async || {
        listeners(&app.db).await.first().copied()
    })
    .await;
    let toml = app.toml().replace("enabled = false", "enabled = true");
    let worker = app.another_node_with(&toml).await;
    let worker_listens = until_some("the worker listens too", async || {
        listeners(&app.db)
            .await
            .into_iter()
            .find(|pid| *pid != receivers)
    })
    .await;
    (app, worker, worker_listens)
}

#[tokio::test]
async fn f69_a_lost_listener_costs_a_poll_and_listens_again() {
    let (app, worker, listener) = receiver_and_worker().await;
    app.db
        .execute(&format!("SELECT pg_terminate_backend({listener})"))
        .await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&worker, &app.db, "evt_1").await;
    until("it listens again", async || {
        let now = listeners(&app.db).await;
        now.len() == 2 && !now.contains(&listener)
    })
    .await;
}

#[tokio::test]
async fn f69_while_no_connection_can_be_made_work_goes_on_without_a_busy_loop() {
    let (app, worker, listener) = receiver_and_worker().await;
    // Everybody has the connections that are needed; new ones are refused.
    put(&app, &paid("evt_0")).await;
    until_booked_once(&worker, &app.db, "evt_0").await;
    let name = &app.db.name;
    app.db
        .execute_outside(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        .await;
    let start = Instant::now();
    app.db
        .execute(&format!("SELECT pg_terminate_backend({listener})"))
        .await;
    let tries = || {
        worker
            .output()
            .matches("not listening for wake-ups")
            .count()
    };
    for n in 1..=3 {
        let key = format!("evt_{n}");
        put(&app, &paid(&key)).await;
        // Asked here: the node may have no connection left for questions.
        until("it is done", async || booked(&app.db, &key).await == 1).await;
        until("it has tried to listen again", async || tries() >= n).await;
    }
    let (tried, seconds) = (tries(), start.elapsed().as_secs());
    assert!(tried as u64 <= seconds + 2, "{tried} within {seconds} s");
    // It rests longer after each.
    assert!(seconds >= 3, "three tries within {seconds} s");
    app.db
        .execute_outside(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
        .await;
    until("it listens again", async || {
        listeners(&app.db).await.len() == 2
    })
    .await;
}
