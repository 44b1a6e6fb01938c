//! Nothing is found while everything goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oncehook::store::verify::VerifyOptions;
use serde_json::json;

use crate::dispatch::LEDGER;
use crate::support::inbox::{Inbox, dispatch, event, stripe_source};
use crate::support::{TestDb, until, until_some};

use super::{JUDGE, findings, judge, ledger, mail, replay_of};

/// Verifications while traffic runs.
const TIMES: usize = 8;
/// Rounds of traffic that these must at least span.
const ROUNDS: usize = 3;
/// Types of events, one of each in a round.
const KINDS: [&str; 5] = ["a.again", "a.no", "a.skip", "a.dead", "charge.succeeded"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_at_work_shows_nothing() {
    let db = Arc::new(TestDb::new().await);
    db.execute(&format!("{LEDGER}{JUDGE}")).await;
    let handlers = vec![ledger(), mail(), judge("late", &["*:z.*"])];
    let inbox = Inbox::on(
        Arc::clone(&db),
        vec![stripe_source()],
        handlers.clone(),
        Some(dispatch()),
    )
    .await;
    let receives = Inbox::on(Arc::clone(&db), vec![stripe_source()], vec![ledger()], None).await;
    let options = VerifyOptions {
        handlers: vec![
            ("ledger".into(), ledger().events),
            ("nobody".into(), mail().events),
        ],
        ..VerifyOptions::everything()
    };

    let done = AtomicBool::new(false);
    let (inbox, receives) = (&inbox, &receives);
    let traffic = async {
        let mut round = 0;
        while !done.load(Ordering::Relaxed) {
            send_round(inbox, receives, round).await;
            round += 1;
        }
        round
    };
    let checks = async {
        until("traffic runs", async || db.count("outcome").await > 10).await;
        for _ in 0..TIMES {
            let verification = db.verify_with(&options).await;
            assert_eq!(findings(&verification), [], "{verification}");
        }
        done.store(true, Ordering::Relaxed);
    };
    let (rounds, ()) = tokio::join!(traffic, checks);
    assert!(rounds >= ROUNDS, "{rounds} rounds of traffic");
    // It was traffic of every kind.
    for table in [
        "conflict",
        "receipt",
        "attempt",
        "audit",
        "outcome WHERE run > 1",
        "outcome WHERE result = 'dead'",
        "event WHERE state = 'unreadable'",
        "event WHERE state = 'unrecognized'",
    ] {
        assert!(db.count(table).await > 0, "{table}");
    }
    db.verify().await;
}

#[tokio::test]
async fn a_check_that_waits_holds_no_lock() {
    let db = TestDb::new().await;
    let holder = db.client().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE oncehook.conflict")
        .await
        .unwrap();
    let options = VerifyOptions::everything();
    let again_and_again = async {
        loop {
            db.verify_with(&options).await;
        }
    };
    let locks = "SELECT coalesce(c.relname, l.locktype) || ' ' || l.mode
                   FROM pg_stat_activity a JOIN pg_locks l USING (pid) LEFT JOIN pg_class c ON c.oid = l.relation
                  WHERE a.datname = current_database() AND a.query LIKE '-- verify_conflict:%' AND a.wait_event_type = 'Lock'
                  ORDER BY 1";
    let seen = until_some("a check waits", async || {
        let seen: Vec<String> = db.all(locks).await;
        (!seen.is_empty()).then_some(seen)
    });
    let seen = tokio::select! {
        () = again_and_again => unreachable!("it goes on"),
        seen = seen => seen,
    };
    // What it waits for, and its own number: nothing is left of the checks before.
    assert_eq!(
        seen,
        ["conflict AccessShareLock", "virtualxid ExclusiveLock"]
    );
}

/// New events of every kind, copies, other content, and replays of what was before.
async fn send_round(inbox: &Inbox, receives: &Inbox, round: usize) {
    let sent = KINDS.map(|kind| async move {
        let id = format!("evt_{round}_{kind}");
        let content = event(&id, kind, json!({"amount": 1}));
        inbox.put(&content).await;
        inbox.put(&content).await;
        if round.is_multiple_of(2) {
            inbox.put(&event(&id, kind, json!({"amount": 2}))).await;
        }
    });
    let [again, no, skip, dead, paid] = sent;
    tokio::join!(again, no, skip, dead, paid);
    inbox.put(&json!(["no event", round])).await;
    // Known to one node only, which does not handle it.
    let id = format!("evt_{round}_z");
    receives.put(&event(&id, "z.new", json!({}))).await;
    if round > 0 {
        let store = inbox.engine.store();
        let before = round - 1;
        for (kind, handler, force) in [
            ("a.dead", "ledger", false),
            ("charge.succeeded", "mail", true),
        ] {
            let key = format!("evt_{before}_{kind}");
            // Refused while the run before is live, which is as good.
            drop(store.replay(&replay_of(&key, handler, force)).await);
        }
        let since = jiff::Timestamp::UNIX_EPOCH;
        let patterns = judge("late", &["*:z.*"]).events;
        let missing = store.replay_missing("late", &patterns, since, false, "a test", "test");
        missing.await.unwrap();
    }
}
