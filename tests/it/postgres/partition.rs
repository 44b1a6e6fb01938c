//! Day partitions: made ahead, and made again where they are missing.

use crate::crash::{booking, paid, put, until_booked_once};
use crate::support::{TestDb, until};

const PARENTS: [&str; 5] = ["request", "event", "outcome", "receipt", "attempt"];

/// Partitions of each parent.
async fn counts(db: &TestDb) -> Vec<i64> {
    let mut counts = Vec::new();
    for parent in PARENTS {
        counts.push(
            db.count(&format!(
                "pg_catalog.pg_inherits WHERE inhparent = 'oncehook.{parent}'::regclass"
            ))
            .await,
        );
    }
    counts
}

/// Drops a parent's partitions of some days, counted from today in UTC.
async fn drop_days(db: &TestDb, parent: &str, days: std::ops::RangeInclusive<i32>) {
    for day in days {
        let suffix: String = db
            .one(&format!(
                "SELECT to_char((now() AT TIME ZONE 'UTC')::date + {day}, 'YYYYMMDD')"
            ))
            .await;
        db.execute(&format!("DROP TABLE oncehook.{parent}_{suffix}"))
            .await;
    }
}

#[tokio::test]
async fn partitions_are_made_fourteen_days_ahead_at_start() {
    let mut app = booking().start().await;
    // Yesterday, today and fourteen more.
    assert_eq!(counts(&app.db).await, [16; 5]);
    let newest = "SELECT max(c.relname)::text = 'event_' || to_char((now() AT TIME ZONE 'UTC')::date + 14, 'YYYYMMDD')
        FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid WHERE i.inhparent = 'oncehook.event'::regclass";
    assert!(app.db.one::<bool>(newest).await);
    for parent in PARENTS {
        drop_days(&app.db, parent, 3..=14).await;
    }
    assert_eq!(counts(&app.db).await, [4; 5]);
    app.restart().await;
    assert_eq!(counts(&app.db).await, [16; 5]);
}

#[tokio::test]
async fn an_event_that_finds_no_partition_has_it_made() {
    let app = booking().start().await;
    for parent in PARENTS {
        drop_days(&app.db, parent, 0..=1).await;
    }
    assert!(!put(&app, &paid("evt_1")).await, "200, and new");
    until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(counts(&app.db).await, [16; 5]);
    // So does a duplicate, whose receipt needs one too.
    drop_days(&app.db, "receipt", 0..=1).await;
    assert!(put(&app, &paid("evt_1")).await);
    assert_eq!(app.db.count("receipt").await, 1);
}

#[tokio::test]
async fn an_outcome_that_finds_no_partition_has_it_made() {
    let app = booking().start().await;
    for parent in ["outcome", "attempt"] {
        drop_days(&app.db, parent, 0..=1).await;
    }
    put(&app, &paid("evt_1")).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 1, "it was nobody's failure");
    until("they are there", async || counts(&app.db).await == [16; 5]).await;
}

#[tokio::test]
async fn a_lost_lease_that_finds_no_partition_has_it_made() {
    let app = booking().start().await;
    drop_days(&app.db, "attempt", 0..=1).await;
    app.db
        .execute(
            "INSERT INTO oncehook.delivery (event_id, handler_id, state, lease_token, leased_at, lease_until)
             SELECT oncehook.uuid7(now()), id, 'leased', gen_random_uuid(), now(), now() FROM oncehook.handler",
        )
        .await;
    until("the loss is recorded", async || {
        app.db.count("attempt WHERE verdict = 'lost'").await == 1
    })
    .await;
}
