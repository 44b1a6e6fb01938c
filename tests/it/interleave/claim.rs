//! Nodes that want the same deliveries.

use std::sync::Arc;

use oncehook::engine::turns::Turns;
use serde_json::{Value, json};

use super::Depth;
use super::explore::Explored;
use super::stage::{
    Stage, claim_and_run, claim_suspect_and_run, go_on, keys, ledger, pause, program, reap,
};

/// A claim can be stopped at the row of this number, its locks taken.
fn paused_at(row: u8) -> String {
    format!(
        "CREATE TRIGGER pause BEFORE UPDATE ON oncehook.delivery FOR EACH ROW EXECUTE FUNCTION app.pause_at({row})"
    )
}

/// Three events, batches of two: two nodes claim and settle, a claim is stopped between its rows.
pub(super) async fn same_rows(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, &paused_at(2), ledger("app.book", 2)).await;
    let plain = Arc::new(stage.plain().await);
    let explored = stage
        .explore(name, depth.bound(1, Some(3)), async |run| {
            let keys = keys(run, 3);
            stage.store(&keys).await;
            pause(&plain).await;
            let programs = vec![
                program(claim_and_run(stage.nodes[0].clone())),
                program(claim_and_run(stage.nodes[1].clone())),
                program(go_on(Arc::clone(&plain))),
            ];
            stage.order(programs, move |stage, claimed| async move {
                let claimed: Vec<_> = claimed.iter().map(Value::as_u64).collect();
                assert!(
                    [[Some(1), Some(2)], [Some(2), Some(1)]].contains(&[claimed[0], claimed[1]]),
                    "one gets two, the other one: {claimed:?}"
                );
                assert_eq!(
                    stage.db.count("delivery").await,
                    0,
                    "each is settled by its holder"
                );
                stage.check(&keys).await;
            })
        })
        .await;
    vec![explored.waits("no claim was ever stopped")]
}

/// Two nodes claim the only suspect, a claim is stopped at it.
pub(super) async fn same_suspect(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, &paused_at(1), ledger("app.book", 2)).await;
    let plain = Arc::new(stage.plain().await);
    let explored = stage
        .explore(name, depth.bound(1, None), async |run| {
            let key = keys(run, 1);
            stage.suspects(&key).await;
            pause(&plain).await;
            let programs = vec![
                program(claim_suspect_and_run(stage.nodes[0].clone())),
                program(claim_suspect_and_run(stage.nodes[1].clone())),
                program(go_on(Arc::clone(&plain))),
            ];
            stage.order(programs, move |stage, claimed| async move {
                let claimed: Vec<_> = claimed.iter().map(Value::as_u64).collect();
                assert_eq!(claimed[0].zip(claimed[1]).map(|(a, b)| a + b), Some(1));
                assert_eq!(stage.db.count("delivery").await, 0);
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored]
}

/// A node that is told to stop gives its lease back when it has ended; another reaps and works on.
pub(super) async fn given_back_late(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", ledger("app.book", 2)).await;
    let explored = stage
        .explore(name, depth.bound(2, None), async |run| {
            let key = keys(run, 1);
            let claimed = stage.leased(0, &key).await;
            stage.end_leases().await;
            let (first, second) = (stage.nodes[0].clone(), stage.nodes[1].clone());
            let programs = vec![
                program(async move {
                    first.give_back(claimed).await;
                    Value::Null
                }),
                program(async move {
                    let reaped = reap(second.clone()).await;
                    let ready = claim_and_run(second.clone()).await;
                    let suspect = claim_suspect_and_run(second).await;
                    json!([reaped, ready, suspect])
                }),
            ];
            stage.order(programs, move |stage, done| async move {
                // Either it was given back and ran among others, or reaped and ran alone.
                let known = [json!([0, 1, 0]), json!([1, 0, 1])];
                assert!(known.contains(&done[1]), "{done:?}");
                assert_eq!(
                    stage.db.count("delivery").await,
                    0,
                    "its new holder has settled it"
                );
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored]
}

/// Two nodes claim for one handler that may have two under way: never more are leased, and never
/// fewer than could be.
pub(super) async fn within_a_cap(name: &str, depth: Depth) -> Vec<Explored> {
    let mut handler = ledger("app.book", 2);
    handler.cap.in_flight = Some(2);
    let stage = Stage::new(2, "", handler).await;
    let explored = stage
        .explore(name, depth.bound(2, None), async |run| {
            let keys = keys(run, 3);
            stage.store(&keys).await;
            let programs = vec![
                program(claim_only(stage.nodes[0].clone())),
                program(claim_only(stage.nodes[1].clone())),
            ];
            stage.order(programs, move |stage, claimed| async move {
                let claimed: Vec<_> = claimed.iter().map(Value::as_u64).collect();
                let sum = claimed[0].zip(claimed[1]).map(|(a, b)| a + b);
                assert_eq!(sum, Some(2), "{claimed:?}");
                let leased = stage.db.count("delivery WHERE state = 'leased'").await;
                assert_eq!(leased, 2);
                stage.check(&keys).await;
            })
        })
        .await;
    vec![explored]
}

/// A node claims and begins nothing; gives how many.
async fn claim_only(node: Turns) -> Value {
    match node.claim().await {
        Ok(claimed) => claimed.map_or(0, |claimed| claimed.count()).into(),
        Err(error) => error.to_string().into(),
    }
}
