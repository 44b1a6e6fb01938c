//! `sql` handlers: effect, outcome and delete commit together.

use std::time::Duration;

use oncehook::dispatch::HandlerSpec;
use serde_json::json;

use crate::dispatch::LEDGER;
use crate::support::inbox::{Inbox, dispatch, event, quick, sql, stripe_source};
use crate::support::{backend_pid, until};

#[tokio::test]
async fn an_event_is_booked_once_and_its_delivery_is_gone() {
    let inbox = Inbox::start(LEDGER, vec![sql("ledger", "app.book")]).await;
    inbox
        .put(&event(
            "evt_1",
            "charge.succeeded",
            json!({"id": "ch_1", "amount": 1200}),
        ))
        .await;
    let (result, timeline) = inbox.until_outcome("evt_1", "ledger").await;
    assert_eq!(result, "succeeded");
    assert_eq!(timeline.event.state, "succeeded");
    assert_eq!(timeline.outcomes[0].attempts, 1);
    let amount: i64 = inbox.db.one("SELECT amount FROM app.ledger").await;
    assert_eq!(amount, 1200);
    assert_eq!(inbox.db.count("delivery").await, 0);
    let effect_key: String = inbox.db.one("SELECT effect_key FROM app.ledger").await;
    assert_eq!(effect_key, timeline.outcomes[0].effect_key);
}

#[tokio::test]
async fn f46_a_failing_handler_is_tried_again_and_its_failed_tries_leave_nothing() {
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
            CREATE FUNCTION app.third_time(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
              PERFORM app.book(event);
              IF event.attempt < 3 THEN RAISE EXCEPTION 'not yet, try %', event.attempt; END IF;
            END $$;"
        ),
        vec![sql("ledger", "app.third_time")],
    )
    .await;
    let body = event(
        "evt_1",
        "charge.succeeded",
        json!({"id": "ch_1", "amount": 5}),
    );
    inbox.put(&body).await;
    until("the first failure", async || {
        !inbox.timeline("evt_1").await.attempts.is_empty()
    })
    .await;
    // A redelivery in between is a duplicate and makes no work.
    inbox.put(&body).await;
    let (result, timeline) = inbox.until_outcome("evt_1", "ledger").await;
    assert_eq!(result, "succeeded");
    assert_eq!(timeline.outcomes[0].attempts, 3);
    let errors: Vec<_> = timeline
        .attempts
        .iter()
        .map(|a| (a.verdict.as_str(), a.error.clone().unwrap()))
        .collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors[0].1.contains("not yet, try 1") && errors[1].1.contains("not yet, try 2"),
        "{errors:?}"
    );
    assert_eq!(timeline.received_count, 2);
    assert_eq!(
        inbox.db.one::<i64>("SELECT count(*) FROM app.ledger").await,
        1
    );
    assert_eq!(
        inbox.db.one::<i32>("SELECT attempt FROM app.ledger").await,
        3
    );
}

#[tokio::test]
async fn a_permanent_error_is_a_dead_letter_and_a_replay_keeps_its_effect_key() {
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
            CREATE TABLE app.switch (good bool); INSERT INTO app.switch VALUES (false);
            CREATE FUNCTION app.maybe(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
              PERFORM app.book(event);
              IF NOT (SELECT good FROM app.switch) THEN RAISE EXCEPTION 'no such account' USING ERRCODE = 'OH001'; END IF;
            END $$;"
        ),
        vec![sql("ledger", "app.maybe")],
    )
    .await;
    inbox
        .put(&event("evt_1", "charge.succeeded", json!({"id": "ch_1"})))
        .await;
    let (result, timeline) = inbox.until_outcome("evt_1", "ledger").await;
    assert_eq!(
        (result.as_str(), timeline.event.state.as_str()),
        ("dead", "dead")
    );
    assert!(
        timeline.outcomes[0]
            .reason
            .as_deref()
            .unwrap()
            .contains("no such account")
    );
    assert_eq!(
        inbox.db.one::<i64>("SELECT count(*) FROM app.ledger").await,
        0
    );

    inbox.db.execute("UPDATE app.switch SET good = true").await;
    let request = oncehook::store::ReplayRequest {
        source: "stripe".into(),
        key: "evt_1".into(),
        handler: "ledger".into(),
        force: false,
        expected_run: Some(1),
        reason: "account made".into(),
        actor: "test".into(),
    };
    let replayed = inbox.engine.store().replay(&request).await.unwrap();
    assert_eq!(replayed.run, 2);
    let (result, timeline) = inbox.until_run("evt_1", "ledger", 2).await;
    assert_eq!(result, "succeeded");
    assert_eq!(
        timeline.outcomes[0].effect_key,
        timeline.outcomes[1].effect_key
    );
    assert_eq!(timeline.audit[0].action, "event.replay");
    // Done is done: only by force, and then under a new effect key.
    let again = oncehook::store::ReplayRequest {
        expected_run: None,
        ..request
    };
    let refused = inbox.engine.store().replay(&again).await.unwrap_err();
    assert!(refused.to_string().contains("--force"), "{refused}");
    let forced = inbox
        .engine
        .store()
        .replay(&oncehook::store::ReplayRequest {
            force: true,
            ..again
        })
        .await
        .unwrap();
    assert_ne!(forced.effect_key, timeline.outcomes[1].effect_key);
    inbox.until_run("evt_1", "ledger", 3).await;
    assert_eq!(
        inbox.db.one::<i64>("SELECT count(*) FROM app.ledger").await,
        2
    );
}

#[tokio::test]
async fn answers_decide_and_a_try_that_asks_for_another_is_rolled_back() {
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
            CREATE FUNCTION app.answer(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
            BEGIN
              PERFORM app.book(event);
              RETURN CASE event.type
                WHEN 'a.skip' THEN '{{\"result\": \"skip\", \"reason\": \"stale\"}}'
                WHEN 'a.failed' THEN '{{\"result\": \"failed\", \"reason\": \"limit\"}}'
                WHEN 'a.retry' THEN CASE WHEN event.attempt = 1 THEN '{{\"result\": \"retry\", \"reason\": \"busy\"}}' END
                WHEN 'a.odd' THEN '{{\"result\": \"dunno\"}}'
                WHEN 'a.made' THEN '{{\"result\": \"done\", \"resource\": \"booking 7\"}}' END::jsonb;
            END $$;"
        ),
        vec![sql("ledger", "app.answer")],
    )
    .await;
    for kind in ["skip", "failed", "retry", "odd", "made"] {
        inbox
            .put(&event(
                &format!("evt_{kind}"),
                &format!("a.{kind}"),
                json!({}),
            ))
            .await;
    }
    let mut rows = Vec::new();
    for (kind, expected, booked) in [
        ("skip", "skipped", 1_i64),
        ("failed", "failed", 1),
        ("retry", "succeeded", 1),
        ("odd", "dead", 0),
        ("made", "succeeded", 1),
    ] {
        let key = format!("evt_{kind}");
        let (result, timeline) = inbox.until_outcome(&key, "ledger").await;
        assert_eq!(result, expected, "{kind}");
        let count: i64 = inbox
            .db
            .one(&format!(
                "SELECT count(*) FROM app.ledger WHERE key = '{key}'"
            ))
            .await;
        assert_eq!(count, booked, "{kind}");
        rows.push(timeline);
    }
    assert_eq!(rows[4].outcomes[0].resource.as_deref(), Some("booking 7"));
    assert_eq!(rows[2].attempts.len(), 1);
}

#[tokio::test]
async fn one_bad_event_among_many_harms_no_neighbour() {
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
            {DEFERRED};
            CREATE FUNCTION app.picky(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
              PERFORM app.book(event);
              IF event.type = 'b.good' THEN PERFORM nextval('app.good_runs'); END IF;
              IF event.type = 'b.syntax' THEN PERFORM event.key::int; END IF;
              IF event.type = 'b.deferred' THEN INSERT INTO app.once VALUES (1), (1); END IF;
            END $$;"
        ),
        vec![],
    )
    .await;
    // Stored while nobody works, so that they are claimed together.
    let idle = inbox;
    let mut handler = quick(sql("ledger", "app.picky"));
    handler.policy.retry.span = std::time::Duration::ZERO;
    let inbox = Inbox::on(
        idle.db.clone(),
        vec![crate::support::inbox::stripe_source()],
        vec![handler.clone()],
        None,
    )
    .await;
    for n in 0..40 {
        let kind = match n {
            7 => "b.syntax",
            23 => "b.deferred",
            _ => "b.good",
        };
        inbox
            .put(&event(&format!("evt_{n}"), kind, json!({"amount": n})))
            .await;
    }
    let working = Inbox::on(
        idle.db.clone(),
        vec![crate::support::inbox::stripe_source()],
        vec![handler],
        Some(crate::support::inbox::dispatch()),
    )
    .await;
    for n in 0..40 {
        let (result, timeline) = working.until_outcome(&format!("evt_{n}"), "ledger").await;
        let expected = if n == 7 || n == 23 {
            "dead"
        } else {
            "succeeded"
        };
        assert_eq!(result, expected, "{n}: {:?}", timeline.attempts);
        if expected == "succeeded" {
            assert_eq!(timeline.outcomes[0].attempts, 1, "{n}");
        } else {
            // At least twelve tries of its own.
            assert_eq!(timeline.outcomes[0].attempts, 12, "{n}");
        }
    }
    assert_eq!(
        working
            .db
            .one::<i64>("SELECT count(*) FROM app.ledger")
            .await,
        38
    );
    let runs: i64 = working.db.one("SELECT last_value FROM app.good_runs").await;
    assert_eq!(runs, 38, "no neighbour was run again");
}

/// Ten events that are claimed together; one of them violates a constraint that is checked at the
/// end. It is dead after its own tries; the others succeed at the first, without being run again.
pub(super) async fn a_deferred_constraint(setup: &str, mut handler: HandlerSpec) {
    handler.policy.retry.span = Duration::ZERO;
    let sources = || vec![stripe_source()];
    let idle = Inbox::start(setup, vec![]).await;
    let storing = Inbox::on(idle.db.clone(), sources(), vec![handler.clone()], None).await;
    for n in 0..10 {
        let kind = if n == 4 { "b.deferred" } else { "b.good" };
        let body = event(&format!("evt_{n}"), kind, json!({"amount": n}));
        storing.put(&body).await;
    }
    let working = Inbox::on(idle.db.clone(), sources(), vec![handler], Some(dispatch())).await;
    for n in 0..10 {
        let (result, timeline) = working.until_outcome(&format!("evt_{n}"), "ledger").await;
        let expected = if n == 4 { "dead" } else { "succeeded" };
        assert_eq!(result, expected, "{n}: {:?}", timeline.attempts);
        if n != 4 {
            assert_eq!(timeline.outcomes[0].attempts, 1, "{n}");
        }
    }
    // A sequence counts what was rolled back too.
    let runs: i64 = working.db.one("SELECT last_value FROM app.good_runs").await;
    assert_eq!(runs, 9, "the others ran once each");
    let booked: i64 = working.db.one("SELECT count(*) FROM app.ledger").await;
    assert_eq!(booked, 9);
}

/// What [`a_deferred_constraint`] needs.
pub(super) const DEFERRED: &str = "
CREATE SEQUENCE app.good_runs;
CREATE TABLE app.once (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)";

#[tokio::test]
async fn a_deferred_constraint_fails_in_the_block_of_its_event() {
    let setup = format!(
        "{LEDGER}{DEFERRED};
        CREATE FUNCTION app.deferring(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
          PERFORM app.book(event);
          IF event.type = 'b.deferred' THEN INSERT INTO app.once VALUES (1), (1);
          ELSE PERFORM nextval('app.good_runs'); END IF;
        END $$;"
    );
    a_deferred_constraint(&setup, quick(sql("ledger", "app.deferring"))).await;
}

#[tokio::test]
async fn a_function_that_would_end_the_transaction_is_dead_at_its_first_try() {
    let setup = format!(
        "{LEDGER}
        CREATE FUNCTION app.committing(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
          PERFORM app.book(event);
          IF event.type = 'b.commit' THEN COMMIT; END IF;
          IF event.type = 'b.rollback' THEN ROLLBACK; END IF;
        END $$;"
    );
    let inbox = Inbox::start(&setup, vec![quick(sql("ledger", "app.committing"))]).await;
    for kind in ["b.commit", "b.rollback", "b.good"] {
        inbox.put(&event(kind, kind, json!({}))).await;
    }
    for (kind, expected) in [
        ("b.commit", "dead"),
        ("b.rollback", "dead"),
        ("b.good", "succeeded"),
    ] {
        let (result, timeline) = inbox.until_outcome(kind, "ledger").await;
        assert_eq!(
            (result.as_str(), timeline.outcomes[0].attempts),
            (expected, 1),
            "{kind}"
        );
    }
    let booked: Vec<String> = inbox.db.all("SELECT key FROM app.ledger").await;
    assert_eq!(booked, ["b.good"]);
}

#[tokio::test]
async fn a_node_without_handlers_leaves_the_runtime_to_others() {
    // The claim loop once spun while it had nothing to claim for, on the test's only thread.
    let inbox = Inbox::start(LEDGER, vec![]).await;
    for n in 0..20 {
        inbox
            .put(&event(&format!("evt_{n}"), "charge.succeeded", json!({})))
            .await;
    }
    assert_eq!(inbox.timeline("evt_19").await.event.state, "unrecognized");
}

#[tokio::test]
async fn a_handler_that_deallocates_our_statements_does_not_stop_its_neighbours() {
    // As often as the dispatcher has connections: every one of them is spoilt in turn.
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
            CREATE FUNCTION app.careless(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
              PERFORM app.book(event);
              IF event.type = 'charge.refunded' THEN EXECUTE 'DEALLOCATE ALL'; END IF;
            END $$;"
        ),
        vec![sql("ledger", "app.careless")],
    )
    .await;
    for n in 0..4 {
        let (bad, good) = (format!("evt_bad_{n}"), format!("evt_good_{n}"));
        for (key, kind) in [(&bad, "charge.refunded"), (&good, "charge.succeeded")] {
            let object = json!({"id": key});
            inbox.put(&event(key, kind, object)).await;
            let (result, _) = inbox.until_outcome(key, "ledger").await;
            assert_eq!(result, "succeeded", "{key}");
        }
    }
    assert_eq!(
        inbox.db.one::<i64>("SELECT count(*) FROM app.ledger").await,
        8
    );
}

#[tokio::test]
async fn a_replay_beyond_the_last_run_number_is_refused_and_changes_nothing() {
    let inbox = Inbox::start(LEDGER, vec![sql("ledger", "app.book")]).await;
    let body = event("evt_1", "charge.succeeded", json!({"id": "ch_1"}));
    inbox.put(&body).await;
    inbox.until_outcome("evt_1", "ledger").await;
    inbox
        .db
        .execute("UPDATE oncehook.outcome SET run = 32767")
        .await;
    let request = oncehook::store::ReplayRequest {
        source: "stripe".into(),
        key: "evt_1".into(),
        handler: "ledger".into(),
        force: true,
        expected_run: None,
        reason: "once more".into(),
        actor: "test".into(),
    };
    let refused = inbox.engine.store().replay(&request).await.unwrap_err();
    assert!(refused.to_string().contains("run 32767"), "{refused}");
    assert_eq!(inbox.db.count("delivery").await, 0);
    assert_eq!(inbox.db.count("audit").await, 0);
}

#[tokio::test]
async fn an_event_behind_a_slow_one_does_not_wait_for_it() {
    let inbox = Inbox::start(
        &format!(
            "{LEDGER}
            CREATE FUNCTION app.slow(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
              IF event.type = 'b.slow' THEN PERFORM pg_advisory_xact_lock_shared(7002); END IF;
              PERFORM app.book(event);
            END $$;"
        ),
        vec![sql("ledger", "app.slow")],
    )
    .await;
    let barrier = inbox.db.client().await;
    barrier
        .batch_execute("SELECT pg_advisory_lock(7002)")
        .await
        .unwrap();
    let pid = backend_pid(&barrier).await;
    inbox
        .put(&event("evt_slow", "b.slow", json!({"amount": 1})))
        .await;
    inbox.db.until_blocked_by(pid).await;
    inbox
        .put(&event("evt_quick", "b.quick", json!({"amount": 2})))
        .await;
    let (result, _) = inbox.until_outcome("evt_quick", "ledger").await;
    assert_eq!(result, "succeeded");
    barrier
        .batch_execute("SELECT pg_advisory_unlock(7002)")
        .await
        .unwrap();
    let (result, _) = inbox.until_outcome("evt_slow", "ledger").await;
    assert_eq!(result, "succeeded");
}
