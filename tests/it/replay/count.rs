//! A count takes as long as there are events to read: it is one at a time, and in nobody's way.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::support::{TestApp, TestDb, until};

use super::dead_letters;
use super::interrupted::spawn;

/// What a count asks first waits until somebody lets it go on: as if it read many millions of events.
const SLOW: &str = "
CREATE OR REPLACE FUNCTION oncehook.uuid7_floor(at timestamptz) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
  WHILE NOT pg_try_advisory_xact_lock_shared(7001) LOOP PERFORM pg_sleep(0.01); END LOOP;
  RETURN (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
END $$";

/// Until it goes, counts take long.
async fn slow_counts(db: &TestDb) -> Client {
    let held = db.client().await;
    held.batch_execute("SELECT pg_advisory_lock(7001)")
        .await
        .unwrap();
    db.execute(SLOW).await;
    held
}

async fn until_counting(db: &TestDb, counts: i64) {
    let counting = "pg_catalog.pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE '%bulk_count: %' AND pid <> pg_backend_pid()";
    until(&format!("{counts} counts are under way"), async || {
        db.count(counting).await == counts
    })
    .await;
}

/// Status, `Retry-After`, body.
async fn post(app: &TestApp, path: &str, body: &Value) -> (u16, Option<u16>, Value) {
    let url = format!("http://{}{path}", app.api);
    let asked = app
        .http
        .post(url)
        .header("content-type", "application/json");
    let sent = asked.body(body.to_string()).send();
    let answer = tokio::time::timeout(Duration::from_secs(10), sent).await;
    let answer = answer.expect("it is answered at once").unwrap();
    let after = answer.headers().get("retry-after");
    let after = after.map(|seconds| seconds.to_str().unwrap().parse().unwrap());
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (status, after, serde_json::from_str(&text).unwrap())
}

#[tokio::test]
async fn one_count_at_a_time_and_every_order_of_people_is_taken_meanwhile() {
    let app = dead_letters(2).await;
    let held = slow_counts(&app.db).await;
    let order = json!({
        "dry_run": true, "reason": "how many", "since": "2020-01-01T00:00:00Z", "every_handler": true,
    });
    let mut asked = JoinSet::new();
    let first = app
        .http
        .post(format!("http://{}/v1/replays", app.api))
        .header("content-type", "application/json")
        .body(order.to_string())
        .send();
    asked.spawn(async move { first.await.unwrap().text().await.unwrap() });
    until_counting(&app.db, 1).await;
    for _ in 0..4 {
        let (status, after, problem) = post(&app, "/v1/replays", &order).await;
        assert_eq!(status, 503, "{problem}");
        assert!(after.is_some_and(|seconds| seconds > 0), "{after:?}");
        assert_eq!(problem["type"], "urn:oncehook:problem:count-under-way");
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains("one at a time") && detail.contains("oncehook replay --all"),
            "{detail}"
        );
    }
    let why = json!({ "reason": "a test" });
    let (status, _, said) = post(&app, "/v1/handlers/ledger/pause", &why).await;
    assert_eq!(status, 200, "{said}");
    until_counting(&app.db, 1).await;
    held.batch_execute("SELECT pg_advisory_unlock_all()")
        .await
        .unwrap();
    let counted: Value = serde_json::from_str(&asked.join_next().await.unwrap().unwrap()).unwrap();
    assert_eq!(counted["runs"], 4, "{counted}");
    let (status, _, counted) = post(&app, "/v1/replays", &order).await;
    assert_eq!((status, &counted["runs"]), (200, &json!(4)));
}

/// Of whoever is not there any more, PostgreSQL reads nothing.
#[tokio::test]
async fn a_command_that_is_interrupted_ends_its_count() {
    let app = dead_letters(1).await;
    let _held = slow_counts(&app.db).await;
    let args = ["--all", "--since", "1h", "--every-handler"];
    let mut counting = spawn(&app, None, &args);
    until_counting(&app.db, 1).await;
    counting.kill().await.unwrap();
    until_counting(&app.db, 0).await;
}
