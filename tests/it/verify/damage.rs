//! Damage done by hand, each kind found by the check that is there for it, and by no other.

use std::sync::Arc;

use oncehook::store::verify::CheckState::{Broken, Unfinished, Warning};
use oncehook::store::verify::{Finding, VerifyOptions};

use crate::support::{OwnCluster, TestDb};

use super::cases::CASES;
use super::story::eventful;
use super::{findings, late, ledger};

/// Rules that keep this damage from happening by itself.
const UNGUARD: &str = "
DO $$
DECLARE rule record;
BEGIN
  FOR rule IN SELECT conname FROM pg_constraint WHERE conrelid = 'oncehook.delivery'::regclass AND contype = 'c' LOOP
    EXECUTE format('ALTER TABLE oncehook.delivery DROP CONSTRAINT %I', rule.conname);
  END LOOP;
END $$;
ALTER TABLE oncehook.audit DISABLE TRIGGER append_only";

const GUARD: &str = "ALTER TABLE oncehook.audit ENABLE TRIGGER append_only";

#[tokio::test]
async fn every_kind_of_damage_is_found_by_its_check_with_an_example() {
    let story = eventful(Arc::new(TestDb::new().await)).await;
    let whole = story.verify().await;
    assert_eq!(findings(&whole), [], "{whole}");
    let mut left: Vec<&str> = whole.checks.iter().map(|check| check.check).collect();
    story.execute(UNGUARD).await;
    for damage in CASES {
        let db = story.copy().await;
        let sql = damage.sql();
        let keep = sql.contains("TRIGGER");
        db.execute(&sql).await;
        if !keep {
            db.execute(GUARD).await;
        }
        let found = db.verify_with(&VerifyOptions::everything()).await;

        let mut expected = damage.checks.to_vec();
        expected.sort_unstable_by_key(|(check, _)| *check);
        let mut by = findings(&found);
        by.sort_unstable_by_key(|(check, _)| *check);
        assert_eq!(by, expected, "{sql}\n{found}");
        let (name, _) = damage.checks[0];
        let check = found.checks.iter().find(|c| c.check == name).unwrap();
        assert_eq!(check.found, 1, "{sql}\n{found}");
        let example: &Finding = &check.findings[0];
        assert!(example.detail.contains(damage.detail), "{sql}\n{found}");
        assert_eq!(example.key.as_deref(), damage.key, "{sql}\n{found}");
        if damage.handler.is_some() {
            assert_eq!(example.handler.as_deref(), damage.handler, "{sql}\n{found}");
            assert_eq!(example.run, damage.run, "{sql}\n{found}");
        }
        left.retain(|check| *check != name);
    }
    // Of the server, not of what is stored; see the tests below.
    assert_eq!(left, ["sessions", "durability"]);
}

/// The shared cluster is one: its data are worth nothing.
#[tokio::test]
async fn a_server_that_does_not_write_what_it_commits_is_said() {
    let settings = [("fsync", "on"), ("full_page_writes", "off")];
    let half = OwnCluster::with_settings(&settings).await;
    let half = half.database().await;
    let shared = TestDb::new().await;
    let both = ["fsync = off", "full_page_writes = off"];
    for (db, off) in [(&shared, &both[..]), (&half, &both[1..])] {
        let found = db.verify_with(&VerifyOptions::default()).await;
        let durability = found.checks.iter().find(|c| c.check == "durability");
        let durability = durability.unwrap();
        let said: Vec<&str> = durability
            .findings
            .iter()
            .map(|f| f.detail.as_str())
            .collect();
        assert_eq!((durability.state, &said[..]), (Warning, off), "{found}");
        assert_eq!(durability.found, off.len() as u64, "{found}");
    }
}

#[tokio::test]
async fn events_that_a_handler_missed_are_found_when_its_patterns_are_known() {
    let story = eventful(Arc::new(TestDb::new().await)).await;
    let options = VerifyOptions {
        handlers: vec![
            ("ledger".into(), ledger().events),
            ("mail".into(), ledger().events),
            ("late".into(), late().events),
        ],
        ..VerifyOptions::default()
    };
    let found = story.verify_with(&options).await;
    assert_eq!(findings(&found), [("missing", Warning)], "{found}");
    let missing = found.checks.iter().find(|c| c.check == "missing").unwrap();
    // Charges went to `mail`; what else `ledger` takes did not.
    let mut keys: Vec<_> = missing
        .findings
        .iter()
        .map(|f| f.key.clone().unwrap())
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, ["evt_again", "evt_dead", "evt_no", "evt_skip"]);
    assert!(
        missing
            .findings
            .iter()
            .all(|f| f.handler.as_deref() == Some("mail"))
    );
}

#[tokio::test]
async fn only_the_window_is_read_and_examples_are_few() {
    let story = eventful(Arc::new(TestDb::new().await)).await;
    story
        .execute("DELETE FROM oncehook.outcome WHERE run = 1")
        .await;
    let options = VerifyOptions {
        examples: 2,
        ..VerifyOptions::default()
    };
    let found = story.verify_with(&options).await;
    let route = found.checks.iter().find(|c| c.check == "route").unwrap();
    assert!(route.found > 2, "{found}");
    assert_eq!(route.findings.len(), 2, "{found}");
    let later = VerifyOptions {
        since: jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1),
        ..options
    };
    let found = story.verify_with(&later).await;
    // Live work is read whole: the second run of `evt_no` lacks its first.
    assert_eq!(findings(&found), [("delivery_run", Broken)], "{found}");
}

#[tokio::test]
async fn open_transactions_and_locked_tables_are_said_and_stop_nothing_else() {
    let db = TestDb::new().await;
    db.execute("SELECT oncehook.make_partitions(3)").await;
    let holder = db.client().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE oncehook.conflict")
        .await
        .unwrap();
    let options = VerifyOptions {
        patience: std::time::Duration::ZERO,
        ..VerifyOptions::default()
    };
    let found = db.verify_with(&options).await;
    let expected = [("conflict", Unfinished), ("sessions", Warning)];
    assert_eq!(findings(&found), expected, "{found}");
    assert!(found.to_string().contains("a table is locked"), "{found}");
    assert!(
        found.to_string().contains("is idle in transaction for"),
        "{found}"
    );
    let counts = (found.broken, found.warnings, found.unfinished);
    assert_eq!(counts, (0, 2, 1), "{found}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    let found = db.verify_with(&options).await;
    assert_eq!(findings(&found), [], "{found}");
}
