//! SIGKILL at every point between the socket and the outcome, each followed by a restart.

use crate::support::{Action, RawHttp};

use super::{
    Barrier, QUICK, Sender, begin_handling, booked, booking, held_booking, kill_before, ledger,
    paid, proxied, put, restart_after_leases, storing_ledger, until_booked_once,
    until_disconnected, verdicts,
};
use crate::support::until;

#[tokio::test]
async fn killed_while_the_body_arrives_stores_nothing() {
    let mut app = booking().start().await;
    let mut raw = RawHttp::connect(app.public).await;
    let head = "POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\n{\"id\":";
    assert!(raw.send(head).await);
    app.kill9();
    assert_eq!(raw.read_all().await, "");
    app.restart().await;
    assert_eq!(app.db.count("event_key").await, 0);
    assert!(!put(&app, &paid("evt_1")).await);
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.verify().await;
}

#[tokio::test]
async fn f30_killed_before_the_commit_of_ingest_leaves_nothing() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = booking().on(db).database_url(url).start().await;
    proxy.arm_after("ingest_reserve:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    assert_eq!(sent.await.unwrap(), None, "nothing may be acknowledged");
    for table in ["event_key", "event", "request", "delivery"] {
        assert_eq!(app.db.count(table).await, 0, "{table}");
    }
    app.restart().await;
    assert!(!put(&app, &paid("evt_1")).await, "it is new");
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.verify().await;
}

#[tokio::test]
async fn f29_killed_between_commit_and_answer_it_is_handled_without_another_request() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    // It handles nothing yet: a claim of it on the wire would arrive too.
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm_after("ingest_reserve:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    app.kill9();
    assert_eq!(sent.await.unwrap(), None);
    // Its COMMIT is on the wire and arrives.
    proxy.thaw();
    until("the commit arrives", async || {
        app.db.count("event_key").await == 1
    })
    .await;
    until_disconnected(&app.db).await;
    assert_eq!(app.db.count("delivery WHERE state = 'ready'").await, 1);
    begin_handling(&mut app).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 1);
    // The sender never heard of it and comes again.
    assert!(put(&app, &paid("evt_1")).await);
    assert_eq!(booked(&app.db, "evt_1").await, 1);
    assert_eq!(app.db.count("event").await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn f41_killed_after_the_claim_it_runs_when_the_lease_has_ended() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = ledger()
        .sql_handler("ledger", "app.book", "lease = \"2s\"")
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm("-- delivery_lock:", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    drop(sent.await);
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    assert_eq!(booked(&app.db, "evt_1").await, 0);
    // The only node inherits from itself.
    app.restart().await;
    until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(verdicts(&app, "evt_1").await[0], "lost");
    app.db.verify().await;
}

#[tokio::test]
async fn f30_killed_inside_the_handler_its_effect_is_rolled_back_and_made_once() {
    let mut app = held_booking(QUICK).start().await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&app.db).await;
    app.kill9();
    // The handler ends, but there is nobody left to commit it.
    barrier.open().await;
    until_disconnected(&app.db).await;
    assert_eq!(booked(&app.db, "evt_1").await, 0);
    assert_eq!(app.db.count("outcome").await, 0);
    restart_after_leases(&mut app).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
    app.db.verify().await;
}

// Other platforms cannot tell while a statement runs: there its time-out ends it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn f41_a_killed_nodes_handler_that_never_ends_does_not_keep_its_rows() {
    let lines = format!("{QUICK}\ntimeout = \"2m\"");
    let mut app = held_booking(&lines).start().await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    let orphan = barrier.until_waited(&app.db).await;
    app.kill9();
    // PostgreSQL looks for its client now and then and ends what nobody waits for.
    until("the orphaned handler is ended", async || {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {orphan}");
        app.db.one::<i64>(&sql).await == 0
    })
    .await;
    restart_after_leases(&mut app).await;
    barrier.open().await;
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.verify().await;
}

#[tokio::test]
async fn f30_killed_between_handler_and_commit_neither_effect_nor_outcome_stays() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = booking().on(db).database_url(url).start().await;
    proxy.arm_after("-- delivery_finish:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    drop(sent.await);
    assert_eq!(booked(&app.db, "evt_1").await, 0);
    assert_eq!(app.db.count("outcome").await, 0);
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    restart_after_leases(&mut app).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
    app.db.verify().await;
}

#[tokio::test]
async fn f29_killed_after_the_commit_before_the_next_claim_loses_nothing() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let lines = format!("{QUICK}\nbatch = 1");
    // With one connection, nothing is claimed while a handler runs.
    let mut app = held_booking(&lines)
        .env("ONCEHOOK_DISPATCH__CONNECTIONS", "1")
        .on(db)
        .database_url(url)
        .start()
        .await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&app.db).await;
    put(&app, &paid("evt_2")).await;
    proxy.arm("-- delivery_claim:", Action::FreezeBefore);
    barrier.open().await;
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    assert_eq!(booked(&app.db, "evt_1").await, 1);
    assert_eq!(app.db.count("delivery WHERE state = 'ready'").await, 1);
    app.restart().await;
    for key in ["evt_1", "evt_2"] {
        let outcome = until_booked_once(&app, &app.db, key).await;
        assert_eq!(outcome["attempts"], 1, "{key}");
    }
    app.db.verify().await;
}
