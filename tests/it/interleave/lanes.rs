//! Commits that leave a lane without a head between them: each is followed by its look, and whatever
//! the order, the lane has its head in the end.

use std::time::Duration;

use oncehook::HandlerSpec;
use oncehook::domain::LaneBy;
use oncehook::engine::turns::Turns;
use oncehook::ingest::Submission;
use serde_json::{Value, json};

use super::Depth;
use super::explore::Explored;
use super::stage::{Stage, claim_and_run, ingest, ledger, program, replay, run, submission_of};

/// The first try of what comes first finds its time not come.
const BOOK_LATER: &str = "
CREATE FUNCTION app.book_later(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF event.key LIKE 'evt\\_%\\_0' AND event.key NOT LIKE 'evt\\_first%' AND event.attempt = 1 THEN RETURN '{\"result\": \"not_yet\"}'; END IF;
  INSERT INTO app.ledger VALUES (event.id, event.key, event.run, event.effect_key);
  RETURN NULL;
END $$;
";

/// Handler `ledger`, whose lanes are the events' objects.
fn laned() -> HandlerSpec {
    HandlerSpec {
        lane: Some(LaneBy::Entity),
        ..ledger("app.book", 2)
    }
}

fn in_lane(run: u64, n: usize) -> Submission {
    let object = json!({ "id": format!("ch_{run}"), "amount": 1 });
    submission_of(&format!("evt_{run}_{n}"), object)
}

fn keys(run: u64, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("evt_{run}_{n}")).collect()
}

/// What the node's own loop does behind its commits.
async fn look(node: &Turns) -> Value {
    match node.look_at_lanes().await {
        Ok(promoted) => promoted.into(),
        Err(error) => error.to_string().into(),
    }
}

async fn write_and_look(node: Turns, submission: Submission) -> Value {
    let answer = ingest(node.clone(), vec![submission]).await;
    look(&node).await;
    answer
}

async fn run_and_look(node: Turns, claimed: oncehook::engine::turns::Claimed) -> Value {
    run(node.clone(), claimed).await;
    look(&node).await
}

/// Every delivery that waits has a head before it, and one only.
async fn heads(stage: &Stage) {
    let lanes: Vec<String> = stage
        .db
        .all(
            "SELECT lane || ': ' || count(*) FILTER (WHERE state <> 'blocked') || ' heads of ' || count(*)
               FROM oncehook.delivery WHERE lane IS NOT NULL
              GROUP BY lane HAVING count(*) FILTER (WHERE state <> 'blocked') <> 1",
        )
        .await;
    assert!(lanes.is_empty(), "{lanes:?}");
}

/// The effects of a lane came in the order of its deliveries, as far as they were stored one after
/// the other.
async fn first_is_first(stage: &Stage, run: u64) {
    let order: Vec<String> = stage
        .db
        .all(&format!(
            "SELECT e.key FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id
              WHERE e.entity = 'ch_{run}' ORDER BY o.finished_at"
        ))
        .await;
    assert_eq!(order.first(), Some(&format!("evt_{run}_0")), "{order:?}");
}

/// Both are the first of their lane.
pub(super) async fn two_inserts(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", laned()).await;
    let explored = stage
        .explore(name, depth.bound(2, None), async |run| {
            let programs = (0..2)
                .map(|n| program(write_and_look(stage.nodes[n].clone(), in_lane(run, n))))
                .collect();
            stage.order(programs, move |stage, done| async move {
                assert_eq!(done, [json!(["New"]), json!(["New"])]);
                heads(&stage).await;
                stage.check(&keys(run, 2)).await;
            })
        })
        .await;
    vec![explored]
}

/// The last of a lane ends while another one comes.
pub(super) async fn insert_against_end(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", laned()).await;
    let explored = stage
        .explore(name, depth.bound(2, None), async |run| {
            let claimed = first_leased(&stage, run).await;
            let programs = vec![
                program(run_and_look(stage.nodes[0].clone(), claimed)),
                program(write_and_look(stage.nodes[1].clone(), in_lane(run, 1))),
            ];
            stage.order(programs, move |stage, _| async move {
                heads(&stage).await;
                stage.check(&keys(run, 2)).await;
                first_is_first(&stage, run).await;
            })
        })
        .await;
    vec![explored]
}

/// The last of a lane answers that its time has not come, while another one comes that can run.
pub(super) async fn insert_against_not_yet(name: &str, depth: Depth) -> Vec<Explored> {
    let mut handler = HandlerSpec {
        lane: Some(LaneBy::Entity),
        ..ledger("app.book_later", 2)
    };
    handler.policy.not_yet.first = Duration::from_hours(1);
    handler.policy.not_yet.max = Duration::from_hours(1);
    let stage = Stage::new(2, BOOK_LATER, handler).await;
    let explored = stage
        .explore(name, depth.bound(2, None), async |run| {
            let claimed = first_leased(&stage, run).await;
            let programs = vec![
                program(run_and_look(stage.nodes[0].clone(), claimed)),
                program(write_and_look(stage.nodes[1].clone(), in_lane(run, 1))),
            ];
            stage.order(programs, move |stage, _| async move {
                heads(&stage).await;
                let first = "SELECT e.key FROM oncehook.delivery d JOIN oncehook.event e ON e.id = d.event_id WHERE d.state = 'ready'";
                let first: Vec<String> = stage.db.all(first).await;
                assert_eq!(first, [format!("evt_{run}_1")], "what can run is first");
                stage.check(&keys(run, 2)).await;
            })
        })
        .await;
    vec![explored]
}

/// A head ends that another follows, while a third comes.
pub(super) async fn insert_against_promotion(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(3, "", laned()).await;
    let explored = stage
        .explore(name, depth.bound(1, Some(3)), async |run| {
            let claimed = first_leased(&stage, run).await;
            write_and_look(stage.nodes[0].clone(), in_lane(run, 1)).await;
            let programs = vec![
                program(run_and_look(stage.nodes[0].clone(), claimed)),
                program(write_and_look(stage.nodes[1].clone(), in_lane(run, 2))),
                program(claim_run_and_look(stage.nodes[2].clone())),
            ];
            stage.order(programs, move |stage, _| async move {
                heads(&stage).await;
                stage.check(&keys(run, 3)).await;
                first_is_first(&stage, run).await;
            })
        })
        .await;
    vec![explored]
}

/// A dead letter is replayed into its lane while the lane's last one ends.
pub(super) async fn replay_against_end(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = Stage::new(2, "", laned()).await;
    let explored = stage
        .explore(name, depth.bound(2, Some(3)), async |run| {
            let claimed = first_leased(&stage, run).await;
            stage.nodes[0].run(claimed).await;
            look(&stage.nodes[0]).await;
            write_and_look(stage.nodes[0].clone(), in_lane(run, 1)).await;
            let claimed = stage.nodes[0].claim().await.unwrap().unwrap();
            let programs = vec![
                program(run_and_look(stage.nodes[0].clone(), claimed)),
                program(replay(
                    stage.nodes[1].clone(),
                    format!("evt_{run}_0"),
                    true,
                    Some(1),
                )),
            ];
            stage.order(programs, move |stage, done| async move {
                assert_eq!(done[1], json!(2));
                heads(&stage).await;
                stage.check(&keys(run, 2)).await;
            })
        })
        .await;
    vec![explored]
}

async fn claim_run_and_look(node: Turns) -> Value {
    let claimed = claim_and_run(node.clone()).await;
    look(&node).await;
    claimed
}

/// The first of a lane is stored and leased by node A.
async fn first_leased(stage: &Stage, run: u64) -> oncehook::engine::turns::Claimed {
    write_and_look(stage.nodes[0].clone(), in_lane(run, 0)).await;
    let claimed = stage.nodes[0].claim().await.unwrap().unwrap();
    assert_eq!(claimed.count(), 1);
    claimed
}
