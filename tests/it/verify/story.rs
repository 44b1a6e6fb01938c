//! A database in which everything has happened once.

use std::sync::Arc;

use serde_json::json;

use crate::dispatch::LEDGER;
use crate::support::inbox::{Inbox, dispatch, event, stripe_source};
use crate::support::{TestDb, until};

use super::{JUDGE, judge, late, ledger, mail, paid, replay_of};

/// A database in which everything has happened once, and nobody is at work any more:
///
/// | key | what |
/// | --- | --- |
/// | `evt_plain` | handled by `ledger` and `mail` |
/// | `evt_twice` | the same; a duplicate, a conflict, and a forced replay by `mail` |
/// | `evt_again` | handled by `ledger` at the third try |
/// | `evt_no`, `evt_skip` | failed, skipped; `evt_no` has a second run, live |
/// | `evt_dead` | a dead letter of `ledger`, twice |
/// | `evt_late` | came before its handler `late`; run by `replay --missing` |
/// | `evt_old` | cancelled when its handler `old` was retired |
/// | `evt_mode` | ignored; beside it an unreadable one |
/// | `evt_live`, `evt_leased` | wait for `ledger` and `mail`; the latter is leased by `ledger` |
/// | `evt_unsure` | the same, but of a call by `mail` the result is unknown |
pub(super) async fn eventful(db: Arc<TestDb>) -> Arc<TestDb> {
    db.execute(&format!("{LEDGER}{JUDGE}")).await;
    let inbox = received(&db).await;
    ordered(&inbox).await;
    inbox.engine.shutdown().await;
    left_waiting(&db).await;
    db
}

/// What came, and was handled.
async fn received(db: &Arc<TestDb>) -> Inbox {
    let old = judge("old", &["*:o.*"]);
    let handlers = vec![ledger(), mail(), old];
    let inbox = Inbox::on(
        Arc::clone(db),
        vec![stripe_source()],
        handlers,
        Some(dispatch()),
    )
    .await;
    for (id, kind) in [
        ("evt_again", "a.again"),
        ("evt_no", "a.no"),
        ("evt_skip", "a.skip"),
        ("evt_dead", "a.dead"),
        ("evt_late", "z.new"),
        ("evt_old", "o.never"),
    ] {
        inbox.put(&event(id, kind, json!({}))).await;
    }
    inbox.put(&paid("evt_plain")).await;
    inbox.put(&paid("evt_twice")).await;
    inbox.put(&paid("evt_twice")).await;
    let other = event("evt_twice", "charge.succeeded", json!({"amount": 6}));
    inbox.put(&other).await;
    inbox
        .put(&json!({"id": "evt_mode", "object": "event", "type": "a.x", "livemode": "yes"}))
        .await;
    inbox.put(&json!(["no event"])).await;
    for id in [
        "evt_again",
        "evt_no",
        "evt_skip",
        "evt_dead",
        "evt_plain",
        "evt_twice",
    ] {
        inbox.until_outcome(id, "ledger").await;
    }
    inbox.until_outcome("evt_twice", "mail").await;
    inbox.until_outcome("evt_plain", "mail").await;
    inbox
}

/// What operators did.
async fn ordered(inbox: &Inbox) {
    let store = inbox.engine.store();
    store
        .replay(&replay_of("evt_twice", "mail", true))
        .await
        .unwrap();
    store
        .replay(&replay_of("evt_dead", "ledger", false))
        .await
        .unwrap();
    inbox.until_run("evt_twice", "mail", 2).await;
    inbox.until_run("evt_dead", "ledger", 2).await;
    until("a failed try", async || {
        !inbox.timeline("evt_old").await.attempts.is_empty()
    })
    .await;
    let handlers = vec![ledger(), mail(), late()];
    inbox
        .engine
        .reload(vec![stripe_source()], handlers)
        .await
        .unwrap();
    store.retire_handler("old", "a test", "test").await.unwrap();
    let since = jiff::Timestamp::UNIX_EPOCH;
    let made = store
        .replay_missing("late", &late().events, since, false, "a test", "test")
        .await;
    assert_eq!(made.unwrap().len(), 1);
    inbox.until_outcome("evt_late", "late").await;
}

/// What nobody handles.
async fn left_waiting(db: &Arc<TestDb>) {
    let storing = Inbox::on(
        Arc::clone(db),
        vec![stripe_source()],
        vec![ledger(), mail()],
        None,
    )
    .await;
    storing.put(&paid("evt_live")).await;
    storing.put(&paid("evt_leased")).await;
    storing.put(&paid("evt_unsure")).await;
    let store = storing.engine.store();
    store
        .replay(&replay_of("evt_no", "ledger", false))
        .await
        .unwrap();
    storing.engine.shutdown().await;
    db.execute(
        "UPDATE oncehook.delivery SET state = 'leased', lease_token = gen_random_uuid(), leased_at = now(), first_try_at = now(),
                lease_until = now() + interval '1 hour'
          WHERE event_id = (SELECT id FROM oncehook.event WHERE key = 'evt_leased')
            AND handler_id = (SELECT id FROM oncehook.handler WHERE name = 'ledger')",
    )
    .await;
    // As if `mail` made calls: one without an answer, which waits for a person.
    db.execute(
        "WITH unsure AS (
           UPDATE oncehook.delivery SET state = 'uncertain', failures = 1, first_try_at = now(), run_at = 'infinity', uncertain_at = now(),
                  call_token = gen_random_uuid(), in_flight_until = now() + interval '1 hour'
            WHERE event_id = (SELECT id FROM oncehook.event WHERE key = 'evt_unsure')
              AND handler_id = (SELECT id FROM oncehook.handler WHERE name = 'mail')
           RETURNING *)
         INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, started_at, ended_at, verdict, error, in_flight_until)
         SELECT event_id, handler_id, run, call_token, first_try_at, uncertain_at, 'unknown', 'HTTP 500: result unknown', in_flight_until
           FROM unsure",
    )
    .await;
    // The answer of a call whose lease another row has ended.
    db.execute(
        "INSERT INTO oncehook.attempt
         SELECT event_id, handler_id, run, lease_token, started_at, ended_at, 'evidence', 'done' FROM oncehook.attempt
          WHERE event_id = (SELECT id FROM oncehook.event WHERE key = 'evt_again')",
    )
    .await;
}
