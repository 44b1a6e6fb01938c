//! Pools that are all in use.

use std::time::{Duration, Instant};

use oncehook::store::{Settings, Store};

use crate::crash::{
    Barrier, QUICK, Sender, booking, held_booking, paid, proxied, put, until_booked_once,
};
use crate::support::until;

use super::{expect_unavailable, until_acknowledged};

#[tokio::test]
async fn whether_the_setting_of_pooling_fits_is_looked_at_once() {
    let (db, proxy) = proxied().await;
    let settings = Settings::parse(&proxy.url(&db.name)).unwrap();
    let store = Store::new(settings, 1).unwrap();
    store.check_pooling().await.unwrap();
    proxy.refuse();
    store.check_pooling().await.unwrap();
}

#[tokio::test]
async fn f72_with_every_dispatch_connection_asleep_ingest_answers_as_ever() {
    let lines = format!("{QUICK}\nbatch = 1\ntimeout = \"1m\"");
    let app = held_booking(&lines)
        .env("ONCEHOOK_DISPATCH__CONNECTIONS", "2")
        .start()
        .await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_a")).await;
    put(&app, &paid("evt_b")).await;
    let asleep = "pg_catalog.pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
    until("both connections sleep", async || {
        app.db.count(asleep).await == 2
    })
    .await;
    for n in 0..20 {
        let start = Instant::now();
        put(&app, &paid(&format!("evt_{n}"))).await;
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
    }
    assert_eq!(super::readiness(&app).await, 200);
    barrier.open().await;
    until("all are done", async || app.db.count("outcome").await == 22).await;
    assert_eq!(app.db.count("app.ledger").await, 22);
}

#[tokio::test]
async fn f72_with_every_ingest_connection_blocked_senders_are_told_in_time() {
    let app = booking().start().await;
    put(&app, &paid("evt_0")).await;
    let mut blocker = app.db.client().await;
    let lock = blocker.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE oncehook.event_key IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let start = Instant::now();
    let sender = Sender::to(&app);
    let sent: Vec<_> = (1..=8)
        .map(|n| sender.spawn(paid(&format!("evt_{n}"))))
        .collect();
    for sent in sent {
        assert_eq!(sent.await.unwrap().unwrap().0, 503);
    }
    assert!(
        start.elapsed() < super::ANSWERED_WITHIN,
        "{:?}",
        start.elapsed()
    );
    // Who comes while they still wait is told too.
    expect_unavailable(&app, &paid("evt_9")).await;
    lock.rollback().await.unwrap();
    for n in 1..=9 {
        until_acknowledged(&app, &paid(&format!("evt_{n}"))).await;
    }
    for n in 0..=9 {
        until_booked_once(&app, &app.db, &format!("evt_{n}")).await;
    }
}
