//! Those who settle, those who think that they still may, and the reaper.

use std::sync::Arc;

use oncehook::engine::turns::Claimed;
use serde_json::{Value, json};

use super::Depth;
use super::explore::{Explored, Order, Program};
use super::stage::{Stage, claim_suspect_and_run, keys, ledger, program, reap, run as settle};
use super::step::Late;

/// A node settles two deliveries whose lease has ended, another reaps.
pub(super) async fn and_reaper(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", ledger("app.book", 50)).await;
    let explored = stage
        .explore(name, depth.bound(3, None), async |run| {
            let keys = keys(run, 2);
            let claimed = stage.leased(0, &keys).await;
            stage.end_leases().await;
            let programs = vec![
                program(settle(stage.nodes[0].clone(), claimed)),
                program(reap(stage.nodes[1].clone())),
            ];
            stage.order(programs, move |stage, results| async move {
                // Both or none: it takes them in one statement.
                let known = [json!(0), json!(2)];
                assert!(known.contains(&results[1]), "reaped: {}", results[1]);
                let reaped = results[1].as_i64().unwrap();
                assert_eq!(stage.db.count("delivery WHERE suspect").await, reaped);
                assert_eq!(stage.db.count("delivery").await, reaped);
                stage.check(&keys).await;
            })
        })
        .await;
    vec![explored]
}

/// A node settles one whose lease has ended, another reaps, a third runs what was reaped.
pub(super) async fn reaper_and_successor(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(3, "", ledger("app.book", 50)).await;
    let explored = stage
        .explore(name, depth.bound(1, None), async |run| {
            let key = keys(run, 1);
            let claimed = stage.leased(0, &key).await;
            stage.end_leases().await;
            let programs = vec![
                program(settle(stage.nodes[0].clone(), claimed)),
                program(reap(stage.nodes[1].clone())),
                program(claim_suspect_and_run(stage.nodes[2].clone())),
            ];
            stage.order(programs, move |stage, results| async move {
                let (reaped, claimed) = (results[1].as_i64(), results[2].as_i64());
                assert!(claimed <= reaped, "{results:?}");
                // What was reaped and not claimed is open, all else is done.
                let open = reaped.unwrap() - claimed.unwrap();
                assert_eq!(stage.db.count("delivery").await, open);
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored]
}

/// Two nodes settle: one whose lease was reaped, and its successor.
pub(super) async fn after_the_lease(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", ledger("app.book", 50)).await;
    let explored = stage
        .explore(name, depth.bound(5, None), async |run| {
            let key = keys(run, 1);
            let lost = stage.leased(0, &key).await;
            stage.end_leases().await;
            assert_eq!(stage.nodes[1].reap().await.unwrap(), 1);
            let held = stage.nodes[1].claim_suspect().await.unwrap().unwrap();
            both(&stage, lost, held, &key, &["lost"])
        })
        .await;
    vec![explored]
}

/// Two nodes settle one lease: a machine was copied while it ran.
pub(super) async fn one_lease_twice(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", ledger("app.book", 50)).await;
    let explored = stage
        .explore(name, depth.bound(2, None), async |run| {
            let key = keys(run, 1);
            let held = stage.leased(0, &key).await;
            both(&stage, held.clone(), held, &key, &[])
        })
        .await;
    vec![explored.waits("none ever waited for the other")]
}

/// A and B settle what they hold of one event; it is done then, after exactly these tries.
fn both(
    stage: &Arc<Stage>,
    a: Claimed,
    b: Claimed,
    key: &[String],
    tries: &'static [&str],
) -> Order {
    let key = key.to_vec();
    let programs = vec![
        program(settle(stage.nodes[0].clone(), a)),
        program(settle(stage.nodes[1].clone(), b)),
    ];
    stage.order(programs, move |stage, _| async move {
        assert_eq!(stage.db.count("delivery").await, 0);
        assert_eq!(stage.verdicts(&key[0]).await, tries);
        stage.check(&key).await;
    })
}

/// The connection of a node whose lease has ended breaks while its COMMIT is under way, which
/// arrives late or never; meanwhile the node reads back, and another reaps and works on.
pub(super) async fn commit_cut_off(name: &str, depth: Depth) -> Vec<Explored> {
    let mut explored = Vec::new();
    for late in [Late::Arrives, Late::Lost] {
        let stage = Stage::new(2, "", ledger("app.book", 50)).await;
        let orders = stage
            .explore(
                &format!("{name}/{late:?}"),
                depth.bound(1, Some(3)),
                async |run| {
                    let key = keys(run, 1);
                    let claimed = stage.leased(0, &key).await;
                    stage.end_leases().await;
                    stage.session(0).lose_commit(late, stage.session(2));
                    let successor = stage.nodes[1].clone();
                    let programs = vec![
                        program(settle(stage.nodes[0].clone(), claimed)),
                        program(async move {
                            let reaped = reap(successor.clone()).await;
                            json!([reaped, claim_suspect_and_run(successor).await])
                        }),
                        Program::Waits,
                    ];
                    stage.order(programs, move |stage, _| async move {
                        assert!(stage.session(0).has_lost_commit());
                        let verdicts = stage.verdicts(&key[0]).await;
                        assert!(verdicts.iter().all(|v| v == "lost"), "{verdicts:?}");
                        assert!(verdicts.len() <= 1, "one lease is lost once: {verdicts:?}");
                        stage.check(&key).await;
                    })
                },
            )
            .await;
        explored.push(orders);
    }
    explored
}

/// Books on an account; the second event of a batch waits before it while its pause is held.
/// Events 0 and 1 are those of one batch, 2 and 3 of the other, which takes the accounts the other
/// way round.
const CROSSED: &str = "
CREATE TABLE app.account (id int PRIMARY KEY, booked int NOT NULL DEFAULT 0);
INSERT INTO app.account VALUES (0), (1);
CREATE FUNCTION app.cross(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
DECLARE n int := split_part(event.key, '_', 3);
BEGIN
  PERFORM pg_advisory_xact_lock_shared(7010 + n);
  UPDATE app.account SET booked = booked + 1 WHERE id = CASE WHEN n IN (0, 3) THEN 0 ELSE 1 END;
  PERFORM app.book(event);
END $$";

/// Two batches book on the same two accounts in opposite order, each can be stopped between its
/// events: they deadlock. One is rolled back, its members run one by one, all are done, and nobody
/// is charged with a try.
pub(super) async fn crossed_rows(name: &str, depth: Depth) -> Vec<Explored> {
    // A batch takes on no more events after 20 ms: who waits at its first event has spent them.
    let stage = Stage::slow(2, CROSSED, ledger("app.cross", 2)).await;
    let plain = Arc::new(stage.plain().await);
    let explored = stage
        .explore(name, depth.bound(1, Some(3)), async |run| {
            let keys = keys(run, 4);
            let first = stage.leased(0, &keys[..2]).await;
            let second = stage.leased(1, &keys[2..]).await;
            let stop = "SELECT pg_advisory_lock(7011), pg_advisory_lock(7013)";
            plain.batch_execute(stop).await.unwrap();
            stage.db.execute("UPDATE app.account SET booked = 0").await;
            let go_on = Arc::clone(&plain);
            let programs = vec![
                program(settle(stage.nodes[0].clone(), first)),
                program(settle(stage.nodes[1].clone(), second)),
                // One after the other, so that it is known whose wait closes the circle.
                program(async move {
                    for n in [7011, 7013] {
                        let unlock = format!("SELECT pg_advisory_unlock({n})");
                        go_on.batch_execute(&unlock).await.unwrap();
                    }
                    Value::Null
                }),
            ];
            stage.order(programs, move |stage, _| async move {
                assert_eq!(stage.db.count("delivery").await, 0, "all are done");
                for key in &keys {
                    assert!(stage.verdicts(key).await.is_empty(), "no try counted");
                }
                let booked: Vec<i32> = stage.db.all("SELECT booked FROM app.account").await;
                assert_eq!(booked, [2, 2]);
                stage.check(&keys).await;
            })
        })
        .await;
    vec![explored.shows(|count| count.deadlocks > 0, "they never deadlocked")]
}

/// The day's partition of the outcomes is not there: both nodes find out, it is made, and it is
/// nobody's failure.
pub(super) async fn no_partition(name: &str, depth: Depth) -> Vec<Explored> {
    // One each: they are stored at once, so that their day is the same also at midnight.
    let stage = Stage::new(2, "", ledger("app.book", 1)).await;
    let explored = stage
        .explore(name, depth.bound(1, Some(3)), async |run| {
            let keys = keys(run, 2);
            stage.store(&keys).await;
            let first = stage.claimed(0, 1).await;
            let second = stage.claimed(1, 1).await;
            let day = "SELECT DISTINCT right(tableoid::regclass::text, 8) FROM oncehook.event WHERE key = ANY ($1)";
            let day: String = stage.db.rows(day, &[&keys]).await[0].get(0);
            let gone = format!("DROP TABLE oncehook.outcome_{day}");
            stage.db.execute(&gone).await;
            let programs = vec![
                program(settle(stage.nodes[0].clone(), first)),
                program(settle(stage.nodes[1].clone(), second)),
            ];
            stage.order(programs, move |stage, _| async move {
                        assert_eq!(stage.db.count("delivery").await, 0, "all are done");
                        for key in &keys {
                            assert!(stage.verdicts(key).await.is_empty(), "no try counted");
                        }
                        stage.check(&keys).await;
})
        })
        .await;
    vec![explored]
}
