//! COMMITs whose answer is lost while the node lives.

use crate::support::Action;

use super::{booked, booking, paid, proxied, put, until_booked_once, verdicts};

#[tokio::test]
async fn an_ingest_commit_whose_reply_is_lost_is_found_and_acknowledged() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let app = booking().on(db).database_url(url).start().await;
    proxy.arm_after("ingest_reserve:", "COMMIT", Action::CutAfter);
    // The second try finds its own key.
    assert!(put(&app, &paid("evt_1")).await);
    proxy.until_fired(1).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(app.db.count("event").await, 1);
}

#[tokio::test]
async fn an_ingest_commit_that_never_arrives_is_made_again() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let app = booking().on(db).database_url(url).start().await;
    proxy.arm_after("ingest_reserve:", "COMMIT", Action::CutBefore);
    assert!(!put(&app, &paid("evt_1")).await, "it is new");
    proxy.until_fired(1).await;
    until_booked_once(&app, &app.db, "evt_1").await;
}

#[tokio::test]
async fn f30_a_settle_whose_commit_reply_is_lost_is_read_back_and_not_repeated() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let app = booking().on(db).database_url(url).start().await;
    proxy.arm_after("-- delivery_finish:", "COMMIT", Action::CutAfter);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 1);
    assert!(verdicts(&app, "evt_1").await.is_empty());
    // The node works on.
    put(&app, &paid("evt_2")).await;
    until_booked_once(&app, &app.db, "evt_2").await;
    assert_eq!(booked(&app.db, "evt_1").await, 1);
}

#[tokio::test]
async fn f30_a_settle_whose_commit_never_arrives_runs_again_at_once() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let lease = "lease = \"1h\"";
    let app = super::ledger()
        .sql_handler("ledger", "app.book", lease)
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm_after("-- delivery_finish:", "COMMIT", Action::CutBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    // The node gives its own lease back; nobody waits an hour.
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
}
