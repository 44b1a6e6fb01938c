//! What reaches a handler, when, and how the easy handler is the correct one.

use std::sync::Arc;

use jiff::Timestamp;
use oncehook::store::ReplayRequest;
use serde_json::json;

use crate::support::inbox::{self, Inbox};
use crate::support::{TestApp, TestDb, until_some};

use super::calls;
use super::{LEDGER, at_once, start, until_booked};

#[tokio::test]
async fn f65_what_was_verified_on_receipt_is_not_judged_by_its_age_again() {
    // Received by a node without a worker, under a signature that has grown old since.
    let db = Arc::new(TestDb::new().await);
    db.execute(LEDGER).await;
    let ledger = || vec![inbox::sql("ledger", "app.book")];
    let receiving = Inbox::on(Arc::clone(&db), calls::sources(), ledger(), None).await;
    let call = calls::stripe_event("evt_1");
    assert_eq!(call.to(receiving.public).await.status, 200);
    db.execute(
        "UPDATE oncehook.request SET received_at = received_at - interval '10 minutes', headers = '[]';
         UPDATE oncehook.delivery SET run_at = run_at - interval '10 minutes'",
    )
    .await;
    let working = Inbox::on(
        Arc::clone(&db),
        calls::sources(),
        ledger(),
        Some(inbox::dispatch()),
    )
    .await;
    until_booked(&db, 1).await;
    // A replay runs the stored event; nothing of the request is verified a second time.
    let request = ReplayRequest {
        source: "stripe".into(),
        key: "evt_1".into(),
        handler: "ledger".into(),
        force: true,
        expected_run: Some(1),
        reason: "booked to the wrong account".into(),
        actor: "test".into(),
    };
    working.engine.store().replay(&request).await.unwrap();
    until_booked(&db, 2).await;
    assert_eq!(db.count("event").await, 1);
}

/// One gauge of a node's metrics page, once it was read from the database.
async fn gauge(app: &TestApp, name: &str) -> i64 {
    until_some("the gauges are read", async || {
        let (_, page) = app.get("/metrics").await;
        let line = page.as_str()?.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    })
    .await
}

#[tokio::test]
async fn f76_late_and_stuck_are_two_numbers() {
    let mut app = TestApp::builder()
        .stripe("stripe")
        .setup(LEDGER)
        .sql_handler("ledger", "app.book", "")
        .toml("[dispatch]\nenabled = false")
        .start()
        .await;
    let calls = (0..100)
        .map(|number| calls::stripe_event(&format!("evt_{number}")))
        .collect();
    for answer in at_once(app.public, calls).await {
        assert_eq!(answer.status, 200);
    }
    // The gauges are read at start.
    app.restart().await;
    assert_eq!(gauge(&app, "oncehook_deliveries_late ").await, 100);
    assert_eq!(gauge(&app, "oncehook_leases_stuck ").await, 0);
    // As a worker leaves one that was killed in mid-lease.
    app.db
        .execute(
            "UPDATE oncehook.delivery SET state = 'leased', lease_token = gen_random_uuid(), leased_at = now() - interval '1 minute',
                    lease_until = now() - interval '30 seconds'
              WHERE event_id = (SELECT min(event_id::text)::uuid FROM oncehook.delivery)",
        )
        .await;
    app.restart().await;
    assert_eq!(gauge(&app, "oncehook_deliveries_late ").await, 99);
    assert_eq!(gauge(&app, "oncehook_leases_stuck ").await, 1);
}

#[tokio::test]
async fn f86_a_guard_in_the_handlers_transaction_makes_two_events_one_effect() {
    let db = Arc::new(TestDb::new().await);
    db.execute(LEDGER).await;
    db.execute(
        "CREATE TABLE app.paid (payment text PRIMARY KEY);
         CREATE FUNCTION app.pay_once(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
           INSERT INTO app.paid VALUES (event.entity) ON CONFLICT DO NOTHING;
           IF NOT FOUND THEN RETURN '{\"result\": \"skip\", \"reason\": \"paid already\"}'; END IF;
           PERFORM app.book(event);
           RETURN NULL;
         END $$",
    )
    .await;
    let handler = vec![inbox::sql("ledger", "app.pay_once")];
    let inbox = Inbox::on(db, calls::sources(), handler, Some(inbox::dispatch())).await;
    let about = |id: &str, event_type: &str| {
        calls::stripe(inbox::event(id, event_type, json!({"id": "pay_1"})).to_string())
    };
    let both = vec![
        about("evt_1", "payment_intent.succeeded"),
        about("evt_2", "charge.succeeded"),
    ];
    for answer in at_once(inbox.public, both).await {
        assert!(answer.status == 200 && !answer.replayed());
    }
    until_booked(&inbox.db, 1).await;
    let results: Vec<String> = inbox
        .db
        .all("SELECT result FROM oncehook.outcome ORDER BY 1")
        .await;
    assert_eq!(results, ["skipped", "succeeded"]);
}

#[tokio::test]
async fn f87_a_handler_that_reads_waits_and_adds_adds_once_for_fifty_copies() {
    let db = Arc::new(TestDb::new().await);
    db.execute(LEDGER).await;
    db.execute(
        "CREATE TABLE app.balance (amount int); INSERT INTO app.balance VALUES (0);
         CREATE FUNCTION app.add(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
         DECLARE before int := (SELECT amount FROM app.balance); BEGIN
           PERFORM pg_sleep(0.2);
           UPDATE app.balance SET amount = before + 100;
           PERFORM app.book(event);
         END $$",
    )
    .await;
    let handler = || vec![inbox::sql("ledger", "app.add")];
    let one = Inbox::on(
        Arc::clone(&db),
        calls::sources(),
        handler(),
        Some(inbox::dispatch()),
    )
    .await;
    let two = Inbox::on(
        Arc::clone(&db),
        calls::sources(),
        handler(),
        Some(inbox::dispatch()),
    )
    .await;
    let call = calls::stripe_event("evt_1");
    let half = || vec![call.clone(); 25];
    let (first, second) = tokio::join!(at_once(one.public, half()), at_once(two.public, half()));
    assert!(
        first
            .iter()
            .chain(&second)
            .all(|answer| answer.status == 200)
    );
    until_booked(&db, 1).await;
    assert_eq!(db.one::<i32>("SELECT amount FROM app.balance").await, 100);
    assert_eq!(db.count("outcome").await, 1);
}

#[tokio::test]
async fn f31_a_handler_added_later_runs_what_it_missed_and_nothing_else() {
    let inbox = start().await;
    assert_eq!(
        calls::stripe_event("evt_1").to(inbox.public).await.status,
        200
    );
    until_booked(&inbox.db, 1).await;
    let handlers = vec![
        inbox::sql("ledger", "app.book"),
        inbox::sql("second", "app.book"),
    ];
    inbox
        .engine
        .reload(calls::sources(), handlers)
        .await
        .unwrap();
    let missed = async |dry_run| {
        let store = inbox.engine.store();
        let every = inbox::every();
        let found = store.replay_missing(
            "second",
            &every,
            Timestamp::UNIX_EPOCH,
            dry_run,
            "new",
            "test",
        );
        found.await.unwrap().len()
    };
    assert_eq!(missed(true).await, 1);
    until_booked(&inbox.db, 1).await;
    assert_eq!(missed(false).await, 1);
    until_booked(&inbox.db, 2).await;
    assert_eq!(missed(false).await, 0);
    until_booked(&inbox.db, 2).await;
}

#[tokio::test]
async fn f47_a_dead_letter_stays_dead_through_redeliveries_until_it_is_replayed() {
    let db = Arc::new(TestDb::new().await);
    db.execute(LEDGER).await;
    db.execute(
        "CREATE TABLE app.switch (good bool); INSERT INTO app.switch VALUES (false);
         CREATE FUNCTION app.maybe(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
           PERFORM app.book(event);
           IF NOT (SELECT good FROM app.switch) THEN RAISE EXCEPTION 'no account' USING ERRCODE = 'OH001'; END IF;
         END $$",
    )
    .await;
    let handler = vec![inbox::sql("ledger", "app.maybe")];
    let inbox = Inbox::on(db, calls::sources(), handler, Some(inbox::dispatch())).await;
    let call = calls::stripe_event("evt_1");
    let first = call.to(inbox.public).await;
    let (result, dead) = inbox.until_outcome("evt_1", "ledger").await;
    assert_eq!((first.status, result.as_str()), (200, "dead"));
    for received in [2, 3] {
        let again = call.to(inbox.public).await;
        assert!(again.replayed() && again.body == first.body);
        let timeline = inbox.timeline("evt_1").await;
        assert_eq!(timeline.received_count, received);
        assert_eq!(
            (timeline.event.state.as_str(), timeline.deliveries.len()),
            ("dead", 0)
        );
        assert_eq!(timeline.outcomes.len(), 1, "no silent restart");
    }
    inbox.db.execute("UPDATE app.switch SET good = true").await;
    let request = ReplayRequest {
        source: "stripe".into(),
        key: "evt_1".into(),
        handler: "ledger".into(),
        force: false,
        expected_run: Some(1),
        reason: "the account is there now".into(),
        actor: "test".into(),
    };
    let replayed = inbox.engine.store().replay(&request).await.unwrap();
    assert_eq!(replayed.effect_key, dead.outcomes[0].effect_key);
    let (result, _) = inbox.until_run("evt_1", "ledger", 2).await;
    assert_eq!(result, "succeeded");
    assert!(call.to(inbox.public).await.replayed());
    until_booked(&inbox.db, 1).await;
    assert_eq!(inbox.db.count("outcome").await, 2);
}
