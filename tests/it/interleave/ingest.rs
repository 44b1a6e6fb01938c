//! Batches that meet under the same keys.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Depth;
use super::explore::{Bound, Explored, Program};
use super::stage::{Stage, go_on, ingest, keys, ledger, pause, program, submission};
use super::step::Late;

/// Each key became one event by exactly one of the batches; the others found it known.
fn one_new(fates: &[Value], position: usize) {
    let of = |word: &str| fates.iter().filter(|f| f[position] == word).count();
    assert_eq!(
        (of("New"), of("Duplicate")),
        (1, fates.len() - 1),
        "{fates:?}"
    );
}

pub(super) async fn same_key(name: &str, _: Depth) -> Vec<Explored> {
    same_key_of(name, 2, None).await
}

pub(super) async fn three_of_one_key(name: &str, depth: Depth) -> Vec<Explored> {
    same_key_of(name, 3, depth.bound(1, None)).await
}

async fn same_key_of(name: &str, nodes: usize, bound: Bound) -> Vec<Explored> {
    let stage = Stage::new(nodes, "", ledger("app.book", 50)).await;
    let explored = stage
        .explore(name, bound, async |run| {
            let key = keys(run, 1);
            let programs = stage
                .nodes
                .iter()
                .map(|node| program(ingest(node.clone(), vec![submission(&key[0], 1)])));
            stage.order(programs.collect(), move |stage, fates| async move {
                one_new(&fates, 0);
                stage.check(&key).await;
                let receipts = format!(
                    "receipt r JOIN oncehook.event e ON e.id = r.event_id WHERE e.key = '{}'",
                    key[0]
                );
                assert_eq!(
                    stage.db.count(&receipts).await,
                    i64::try_from(fates.len() - 1).unwrap()
                );
            })
        })
        .await;
    vec![explored.waits("no batch ever waited for another")]
}

pub(super) async fn other_content(name: &str, _: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", ledger("app.book", 50)).await;
    let explored = stage
        .explore(name, None, async |run| {
            let key = keys(run, 1);
            let programs = (0..2)
                .zip(&stage.nodes)
                .map(|(n, node)| program(ingest(node.clone(), vec![submission(&key[0], n)])));
            stage.order(programs.collect(), move |stage, mut fates| async move {
                fates.sort_by_key(ToString::to_string);
                assert_eq!(fates, [json!(["Conflict"]), json!(["New"])]);
                stage.check(&key).await;
                assert_eq!(
                    stage
                        .db
                        .count(&format!("conflict WHERE key = '{}'", key[0]))
                        .await,
                    1
                );
            })
        })
        .await;
    vec![explored]
}

/// Two batches with the same two keys, requests in opposite order; the statement that reserves is
/// stopped between its two rows.
pub(super) async fn crossed_keys(name: &str, _: Depth) -> Vec<Explored> {
    let setup = "CREATE TRIGGER pause BEFORE INSERT ON oncehook.event_key FOR EACH ROW EXECUTE FUNCTION app.pause_at(2)";
    let stage = Stage::new(2, setup, ledger("app.book", 50)).await;
    let plain = Arc::new(stage.plain().await);
    let explored = stage
        .explore(name, None, async |run| {
            let keys = keys(run, 2);
            pause(&plain).await;
            let batch = |first: usize, second: usize| {
                vec![submission(&keys[first], 1), submission(&keys[second], 1)]
            };
            let programs = vec![
                program(ingest(stage.nodes[0].clone(), batch(0, 1))),
                program(ingest(stage.nodes[1].clone(), batch(1, 0))),
                program(go_on(Arc::clone(&plain))),
            ];
            stage.order(programs, move |stage, results| async move {
                let (a, b) = (&results[0], &results[1]);
                let b = json!([b[1], b[0]]);
                for position in 0..2 {
                    one_new(&[a.clone(), b.clone()], position);
                }
                stage.check(&keys).await;
            })
        })
        .await;
    let explored = explored.waits("no batch ever waited for another");
    vec![explored.shows(|count| count.deadlocks == 0, "sorted keys cannot deadlock")]
}

/// The first batch loses its connection while its COMMIT is under way; another has the same key.
pub(super) async fn abort_of_one(name: &str, depth: Depth) -> Vec<Explored> {
    let mut explored = Vec::new();
    for late in [Late::Arrives, Late::Lost] {
        let stage = Stage::new(2, "", ledger("app.book", 50)).await;
        let orders = stage
            .explore(
                &format!("{name}/{late:?}"),
                depth.bound(1, None),
                async |run| {
                    let key = keys(run, 1);
                    stage.session(0).lose_commit(late, stage.session(2));
                    let mut programs: Vec<_> = stage
                        .nodes
                        .iter()
                        .map(|node| program(ingest(node.clone(), vec![submission(&key[0], 1)])))
                        .collect();
                    programs.push(Program::Waits);
                    stage.order(programs, move |stage, fates| async move {
                        assert!(stage.session(0).has_lost_commit());
                        // Its first try may have made the event: then nobody is told that it is new.
                        let new = fates.iter().filter(|f| f[0] == "New").count();
                        let known = fates.iter().filter(|f| f[0] == "Duplicate").count();
                        assert!(new <= 1 && new + known == 2, "{fates:?}");
                        assert!(new == 1 || late == Late::Arrives, "{fates:?}");
                        stage.check(&key).await;
                    })
                },
            )
            .await;
        explored.push(orders);
    }
    explored
}
