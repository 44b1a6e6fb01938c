//! Answers that are lost while the node lives: of PostgreSQL to a COMMIT or a claim, ours to a
//! sender.

use serde_json::json;

use crate::support::{Action, RawHttp, Receiver, Reply, until};

use super::http::calling;
use super::{
    Barrier, QUICK, begin_handling, booked, booking, end_leases, held_booking, paid, proxied, put,
    signed_request, storing_ledger, timeline, until_booked_once, verdicts,
};

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
    app.db.verify().await;
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
    app.db.verify().await;
}

#[tokio::test]
async fn a_sender_that_never_gets_its_200_comes_again_as_a_duplicate() {
    let app = booking().start().await;
    let mut raw = RawHttp::connect(app.public).await;
    assert!(raw.send(signed_request(&paid("evt_1"))).await);
    until_booked_once(&app, &app.db, "evt_1").await;
    // The answer lies in the socket, or will; nobody reads it.
    drop(raw);
    for _ in 0..2 {
        assert!(put(&app, &paid("evt_1")).await, "it is known");
    }
    assert_eq!(app.db.count("event").await, 1);
    assert_eq!(app.db.count("delivery").await, 0);
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.verify().await;
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_made_again_when_its_lease_has_ended() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .on(db)
        .database_url(url)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    app.kill9();
    // Committed at PostgreSQL, and nobody knows the token.
    proxy.arm_after("-- delivery_claim:", "COMMIT", Action::CutAfter);
    begin_handling(&mut app).await;
    proxy.until_fired(1).await;
    end_leases(&app.db).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
    app.db.verify().await;
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
    app.db.verify().await;
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
    app.db.verify().await;
}

#[tokio::test]
async fn a_call_whose_settle_reply_is_lost_is_settled_once_and_is_no_late_evidence() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let receiver = Receiver::start().await;
    let app = calling(&receiver, "/", "")
        .on(db)
        .database_url(url)
        .start()
        .await;
    // One that ends the run, and one that puts it back for another try.
    for (cuts, key, status, statement, attempts, history) in [
        (2, "evt_done", 200, "-- delivery_finish:", 1, &[][..]),
        (4, "evt_again", 503, "-- delivery_retry:", 2, &["retry"]),
    ] {
        receiver.reply(Reply::status(status));
        proxy.arm_after(statement, "COMMIT", Action::CutAfter);
        // The node comes with its answer once more; cut, so that it is known when it has.
        proxy.arm_after("-- attempt_evidence:", "COMMIT", Action::CutAfter);
        put(&app, &paid(key)).await;
        let outcome = app.until_outcome("stripe", key, "ledger").await;
        assert_eq!(outcome["result"], "succeeded", "{key}");
        assert_eq!(outcome["attempts"], attempts, "{key}");
        proxy.until_fired(cuts).await;
        assert_eq!(verdicts(&app, key).await, history, "{key}");
    }
    assert_eq!(receiver.requests().len(), 3);
    app.db.verify().await;
}

#[tokio::test]
async fn a_timeline_asked_for_while_the_outcome_commits_is_of_one_moment() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = held_booking(QUICK).on(db).start().await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&app.db).await;
    // Asked of another node, whose statements can be held back.
    let toml = app
        .toml()
        .replace(&app.db.url, &url)
        .replace("[dispatch]", "[dispatch]\nenabled = false");
    let other = app.another_node_with(&toml).await;
    proxy.arm("timeline_outcomes:", Action::FreezeBefore);
    let (asked, ()) = tokio::join!(timeline(&other, "evt_1"), async {
        proxy.until_fired(1).await;
        barrier.open().await;
        until("it is done", async || booked(&app.db, "evt_1").await == 1).await;
        proxy.thaw();
    });
    assert_eq!(
        (&asked["state"], &asked["outcomes"]),
        (&json!("pending"), &json!([]))
    );
    let asked = timeline(&other, "evt_1").await;
    assert_eq!(asked["state"], "succeeded");
    app.db.verify().await;
}
