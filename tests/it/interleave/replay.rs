//! New runs by command against those who work.

use std::sync::Arc;

use jiff::Timestamp;
use oncehook::engine::turns::Turns;
use serde_json::{Value, json};

use super::Depth;
use super::explore::Explored;
use super::stage::{
    Stage, claim_and_run, ingest, keys, ledger, program, replay, run as settle, submission,
};
use crate::support::inbox::every;

/// The runs that replays opened; all other results are refusals, each with this word in it.
fn opened(results: &[Value], refused: &str) -> Vec<i64> {
    results
        .iter()
        .filter_map(|result| match result.as_str() {
            Some(error) => {
                assert!(error.contains(refused), "{error}");
                None
            }
            None => Some(result.as_i64().unwrap()),
        })
        .collect()
}

/// An event that has succeeded.
async fn done(stage: &Stage, key: &[String]) {
    let claimed = stage.leased(0, key).await;
    stage.nodes[0].run(claimed).await;
    assert_eq!(stage.db.count("delivery").await, 0);
}

/// Two replays of one event at once: one opens the next run.
pub(super) async fn twice(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", ledger("app.book", 2)).await;
    let explored = stage
        .explore(name, depth.bound(1, None), async |run| {
            let key = keys(run, 1);
            done(&stage, &key).await;
            let replays = stage.nodes.iter();
            let programs =
                replays.map(|node| program(replay(node.clone(), key[0].clone(), true, None)));
            stage.order(programs.collect(), move |stage, results| async move {
                assert_eq!(opened(&results[..2], "live"), [2]);
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored.waits("no replay ever waited for the other")]
}

/// Two replays that expect run 1 to be the last, while another node runs what they open: however
/// quickly run 2 is done, there is no run 3.
pub(super) async fn expected_run(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(3, "", ledger("app.book", 2)).await;
    let explored = stage
        .explore(name, depth.bound(1, None), async |run| {
            let key = keys(run, 1);
            done(&stage, &key).await;
            let programs = vec![
                program(replay(
                    stage.nodes[0].clone(),
                    key[0].clone(),
                    true,
                    Some(1),
                )),
                program(replay(
                    stage.nodes[1].clone(),
                    key[0].clone(),
                    true,
                    Some(1),
                )),
                program(claim_and_run(stage.nodes[2].clone())),
            ];
            stage.order(programs, move |stage, results| async move {
                assert_eq!(opened(&results[..2], ""), [2], "there is no run 3");
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored]
}

/// A replay while the run before is being settled, and a node that runs what it opens.
pub(super) async fn and_settle(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(3, "", ledger("app.book", 2)).await;
    let explored = stage
        .explore(name, depth.bound(1, None), async |run| {
            let key = keys(run, 1);
            let claimed = stage.leased(1, &key).await;
            let programs = vec![
                program(replay(stage.nodes[0].clone(), key[0].clone(), true, None)),
                program(settle(stage.nodes[1].clone(), claimed)),
                program(claim_and_run(stage.nodes[2].clone())),
            ];
            stage.order(programs, move |stage, results| async move {
                let opened = opened(&results[..1], "live");
                assert!([&[][..], &[2]].contains(&&opened[..]), "{opened:?}");
                let claimed = results[2].as_i64().unwrap();
                let open = i64::try_from(opened.len()).unwrap() - claimed;
                assert_eq!(stage.db.count("delivery").await, open);
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored.waits("the replay never met the settle transaction")]
}

/// First runs for a handler that came later; gives how many were made.
async fn first_runs(node: Turns, since: Timestamp) -> Value {
    let (store, events) = (node.store(), every());
    match store
        .replay_missing("ledger", &events, since, false, "test", "test")
        .await
    {
        Ok(made) => made.len().into(),
        Err(error) => error.to_string().into(),
    }
}

/// Two nodes make the missing first runs, one of them works on what it made.
pub(super) async fn missing(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", ledger("app.book", 2)).await;
    let explored = stage
        .explore(name, depth.bound(1, Some(3)), async |run| {
            let key = keys(run, 1);
            let since = Timestamp::now();
            stage.store(&key).await;
            // As if the handler had not been there when it came.
            stage.db.execute("DELETE FROM oncehook.delivery").await;
            let worker = stage.nodes[1].clone();
            let programs = vec![
                program(first_runs(stage.nodes[0].clone(), since)),
                program(async move {
                    let made = first_runs(worker.clone(), since).await;
                    json!([made, claim_and_run(worker).await])
                }),
            ];
            stage.order(programs, move |stage, results| async move {
                let (a, b) = (results[0].as_u64(), results[1][0].as_u64());
                assert_eq!(
                    a.zip(b).map(|(a, b)| a + b),
                    Some(1),
                    "one of them makes it: {results:?}"
                );
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored]
}

/// The day's payloads are dropped, as retention will do, while a node replays the event and runs
/// it, and another gets a late copy.
pub(super) async fn payload_dropped(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", ledger("app.book", 2)).await;
    let plain = Arc::new(stage.plain().await);
    let explored = stage
        .explore(name, depth.bound(1, Some(2)), async |run| {
            let key = keys(run, 1);
            stage.db.execute("SELECT oncehook.make_partitions(2)").await;
            done(&stage, &key).await;
            let partition = format!("SELECT r.tableoid::regclass::text FROM oncehook.request r JOIN oncehook.event e ON e.request_id = r.id WHERE e.key = '{}'", key[0]);
            let partition: String = stage.db.one(&partition).await;
            let (node, again, plain) = (stage.nodes[0].clone(), key[0].clone(), Arc::clone(&plain));
            let programs = vec![
                program(async move {
                    let opened = replay(node.clone(), again, true, None).await;
                    json!([opened, claim_and_run(node).await])
                }),
                program(ingest(stage.nodes[1].clone(), vec![submission(&key[0], 1)])),
                program(async move {
                    plain.batch_execute(&format!("DROP TABLE {partition}")).await.unwrap();
                    Value::Null
                }),
            ];
            stage.order(programs, move |stage, results| async move {
                        assert_eq!(results[1], json!(["Duplicate"]), "the key outlives the payload");
                        let ran = opened(&[results[0][0].clone()], "payload was dropped");
                        assert_eq!(results[0][1], ran.len(), "what was opened is run at once");
                        assert_eq!(stage.db.count("delivery").await, 0);
                        let of_run_2 = format!("SELECT o.result FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id WHERE o.run = 2 AND e.key = '{}'", key[0]);
                        let result: Vec<String> = stage.db.all(&of_run_2).await;
                        assert_eq!(result.len(), ran.len());
                        assert!(result.iter().all(|r| r == "succeeded" || r == "dead"), "{result:?}");
                        stage.check(&key).await;
})
        })
        .await;
    vec![explored]
}
