//! The keys of operations: begun again, renewed, replayed, read, emptied.
//!
//! That time has passed is either so before the order begins, or is a step of its own: a plain session writes the end
//! of a key or an answer into the past.

use std::sync::Arc;

use jiff::Timestamp;
use oncehook::domain::operation::{OperationSpec, State, Stored};
use oncehook::domain::{Ending, EventKey};
use oncehook::engine::turns::Turns;
use oncehook::store::ReplayRequest;
use oncehook::store::bulk::{BulkOrder, RATE_MAX, ReplayFilter};
use oncehook::{HandlerKind, HandlerSpec};
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use super::Depth;
use super::explore::Explored;
use super::stage::{CLIENT, Stage, ingest, intent, keys, program, run as settle};
use crate::support::inbox::quick;

/// What the keeper runs.
const PURGE: &str = include_str!("../../../src/store/sql/response_purge.sql");

/// Books, unless it is told to fail: then only its second run does.
const PAY: &str = r#"
CREATE FUNCTION app.pay(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF event.run = 1 AND oncehook.body_json(event) ? 'dead' THEN RAISE EXCEPTION 'no' USING ERRCODE = 'OH001'; END IF;
  INSERT INTO app.ledger VALUES (event.id, event.key, event.run, event.effect_key);
  RETURN '{"result": "done", "status": 201, "body": {"paid": true}}';
END $$;
"#;

const GOOD: &str = r#"{"amount": 1}"#;
const DEAD: &str = r#"{"amount": 1, "dead": true}"#;
const OTHER: &str = r#"{"amount": 2}"#;

fn pay() -> HandlerSpec {
    let kind = HandlerKind::Sql {
        call: "app.pay".into(),
    };
    let spec = HandlerSpec {
        batch: 2,
        ..HandlerSpec::operation("pay", kind, OperationSpec::default())
    };
    quick(spec)
}

async fn stage(nodes: usize) -> Arc<Stage> {
    Stage::new(nodes, PAY, pay()).await
}

/// An intent that has ended; gives its event.
async fn ended(stage: &Stage, key: &str, body: &str) -> Uuid {
    let node = &stage.nodes[0];
    let answers = node.write(vec![intent(node, "pay", key, body)]).await;
    let event = answers[0].as_ref().unwrap().items[0].0;
    let claimed = stage.claimed(0, 1).await;
    node.run(claimed).await;
    event
}

fn over(key: &str) -> String {
    format!(
        "UPDATE oncehook.event_key SET expires_at = now() - interval '1 s' WHERE key = '{CLIENT}:{key}'"
    )
}

/// A client comes again; gives what its intent was told to be.
async fn submit(node: Turns, key: String, body: &'static str) -> Value {
    let intent = intent(&node, "pay", &key, body);
    ingest(node, vec![intent]).await[0].clone()
}

/// A client that was told of the failure has it begun again; gives whether it was.
async fn again(node: Turns, event: Uuid, handler: i32) -> Value {
    match node.store().run_again(event, 1, handler).await {
        Ok(begun) => begun.into(),
        Err(error) => error.to_string().into(),
    }
}

/// What a client would be answered.
async fn read(node: Turns, source: i32, key: String) -> Value {
    let key = EventKey::of_parts([CLIENT, key.as_str()]).unwrap();
    let read = node.store().operations(&[(source, &key)]).await;
    let record = read.unwrap().pop().unwrap().unwrap();
    match (record.state, record.stored) {
        (State::Processing, _) => json!("processing"),
        (_, Stored::Kept(response)) => {
            json!([response.status, String::from_utf8_lossy(&response.body)])
        }
        (_, Stored::Purged) => json!("gone"),
        (state, Stored::Nothing) => json!(format!("{state:?} without an answer")),
    }
}

/// The answer of what has succeeded.
fn kept() -> Value {
    json!([201, "{\"paid\": true}"])
}

async fn id(stage: &Stage, table: &str) -> i32 {
    let sql = format!("SELECT id FROM oncehook.{table} WHERE name = 'pay'");
    stage.db.one(&sql).await
}

async fn events(stage: &Stage, key: &str) -> i64 {
    stage
        .db
        .count(&format!("event WHERE key = '{CLIENT}:{key}'"))
        .await
}

fn plainly(plain: &Arc<Client>, sql: String) -> super::explore::Program {
    let plain = Arc::clone(plain);
    program(async move {
        plain.batch_execute(&sql).await.unwrap();
        Value::Null
    })
}

/// Two clients that come again after a failure: one run is begun.
pub(super) async fn again_twice(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = stage(2).await;
    let handler = id(&stage, "handler").await;
    let explored = stage
        .explore(name, depth.bound(1, None), async |run| {
            let key = keys(run, 1);
            let event = ended(&stage, &key[0], DEAD).await;
            let begin = stage.nodes.iter();
            let programs = begin.map(|node| program(again(node.clone(), event, handler)));
            stage.order(programs.collect(), move |stage, results| async move {
                let begun = results.iter().filter(|begun| **begun == json!(true));
                assert_eq!(begun.count(), 1, "{results:?}");
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored.waits("no client ever waited for the other")]
}

/// A run is begun again while the key's time passes and another client comes: either the new run belongs to the old
/// intent, which stays, or the intent is a new one.
pub(super) async fn again_and_renewal(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = stage(2).await;
    let handler = id(&stage, "handler").await;
    let plain = Arc::new(stage.plain().await);
    let explored = stage
        .explore(name, depth.bound(1, Some(2)), async |run| {
            let key = keys(run, 1);
            let event = ended(&stage, &key[0], DEAD).await;
            let programs = vec![
                program(again(stage.nodes[0].clone(), event, handler)),
                program(submit(stage.nodes[1].clone(), key[0].clone(), OTHER)),
                plainly(&plain, over(&key[0])),
            ];
            stage.order(programs, move |stage, results| async move {
                let (begun, fate) = (results[0].as_bool().unwrap(), results[1].clone());
                assert!(!begun || fate == "Conflict", "{results:?}");
                let renewed = fate == "New";
                assert!(renewed || fate == "Conflict", "{results:?}");
                assert_eq!(events(&stage, &key[0]).await, 1 + i64::from(renewed));
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored.waits("nobody ever waited for the key")]
}

/// A person replays the failure of an expired key while a client comes with another intent: one of them has it.
pub(super) async fn replay_and_renewal(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = stage(2).await;
    let explored = stage
        .explore(name, depth.bound(2, Some(3)), async |run| {
            let key = keys(run, 1);
            ended(&stage, &key[0], DEAD).await;
            stage.db.execute(&over(&key[0])).await;
            let (node, again) = (stage.nodes[0].clone(), key[0].clone());
            let programs = vec![
                program(async move { replay(&node, &again).await }),
                program(submit(stage.nodes[1].clone(), key[0].clone(), OTHER)),
            ];
            stage.order(programs, move |stage, results| async move {
                if results[0] == json!(2) {
                    assert_eq!(results[1], "Conflict");
                } else {
                    let refused = results[0].as_str().unwrap();
                    assert!(refused.contains("names a later intent"), "{refused}");
                    assert_eq!(results[1], "New");
                }
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored.waits("neither ever waited for the key")]
}

async fn replay(node: &Turns, key: &str) -> Value {
    let request = ReplayRequest {
        source: "pay".into(),
        key: format!("{CLIENT}:{key}"),
        handler: "pay".into(),
        force: false,
        expected_run: None,
        reason: "test".into(),
        actor: "test".into(),
    };
    match node.store().replay(&request).await {
        Ok(replayed) => replayed.run.into(),
        Err(error) => error.to_string().into(),
    }
}

/// Two clients come with different intents under one expired key: one has it, the other is told so.
pub(super) async fn renewed_twice(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = stage(2).await;
    let explored = stage
        .explore(name, depth.bound(2, None), async |run| {
            let key = keys(run, 1);
            ended(&stage, &key[0], GOOD).await;
            stage.db.execute(&over(&key[0])).await;
            let clients = stage.nodes.iter().zip([GOOD, OTHER]);
            let programs =
                clients.map(|(node, body)| program(submit(node.clone(), key[0].clone(), body)));
            stage.order(programs.collect(), move |stage, results| async move {
                let mut fates: Vec<&str> = results[..2].iter().filter_map(Value::as_str).collect();
                fates.sort_unstable();
                assert_eq!(fates, ["Conflict", "New"]);
                assert_eq!(events(&stage, &key[0]).await, 2);
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored.waits("no client ever waited for the other")]
}

/// A run is settled whose key has expired meanwhile, and a client comes with another intent: before the end it is
/// told so, behind it it is a new one.
pub(super) async fn settle_and_renewal(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = stage(2).await;
    let explored = stage
        .explore(name, depth.bound(1, Some(3)), async |run| {
            let key = keys(run, 1);
            let claimed = stage.leased(0, &key).await;
            stage.db.execute(&over(&key[0])).await;
            let programs = vec![
                program(settle(stage.nodes[0].clone(), claimed)),
                program(submit(stage.nodes[1].clone(), key[0].clone(), OTHER)),
            ];
            stage.order(programs, move |stage, results| async move {
                let renewed = results[1] == "New";
                assert!(renewed || results[1] == "Conflict", "{results:?}");
                assert_eq!(events(&stage, &key[0]).await, 1 + i64::from(renewed));
                assert_eq!(stage.db.count("delivery").await, i64::from(renewed));
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored]
}

/// A page of a bulk replay over two failures, of which the one with the later key came first, and a batch that renews
/// both keys: no deadlock, and each key has one of both.
pub(super) async fn bulk_and_renewals(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = stage(2).await;
    let explored = stage
        .explore(name, depth.bound(1, Some(2)), async |run| {
            let key = keys(run, 2);
            let since = Timestamp::now();
            for key in key.iter().rev() {
                ended(&stage, key, DEAD).await;
                stage.db.execute(&over(key)).await;
            }
            let bulk = stage.nodes[0].store().start_bulk(&order(since)).await;
            let bulk = bulk.unwrap();
            let (node, other, both) = (stage.nodes[0].clone(), stage.nodes[1].clone(), key.clone());
            let programs = vec![
                program(async move {
                    match node.store().next_page(Some(bulk), &|_| Ok(())).await {
                        Ok(page) => page.map(|page| page.opened).into(),
                        Err(error) => error.to_string().into(),
                    }
                }),
                program(async move {
                    let both = both.iter().map(|key| intent(&other, "pay", key, OTHER));
                    let both = both.collect();
                    ingest(other, both).await
                }),
            ];
            stage.order(programs, move |stage, results| async move {
                let fates = results[1].as_array().unwrap();
                let renewed = fates.iter().filter(|fate| **fate == "New").count();
                // A page that meets a deadlock is given up, and comes again later.
                let opened = results[0].as_u64().expect("the page was given up");
                assert_eq!(opened + u64::try_from(renewed).unwrap(), 2, "{results:?}");
                stage.check(&key).await;
            })
        })
        .await;
    let explored = explored.waits("the page never met the batch");
    vec![explored.shows(|count| count.deadlocks == 0, "they deadlock")]
}

fn order(since: Timestamp) -> BulkOrder {
    BulkOrder {
        filter: ReplayFilter {
            source: Some("pay".to_owned()),
            event_type: None,
            handler: None,
            results: vec![Ending::Dead],
            since,
            until: None,
        },
        force: false,
        verify_bytes: false,
        rate: RATE_MAX,
        anew: true,
        reason: "test".into(),
        actor: "test".into(),
    }
}

/// A client reads while the run is settled: nothing, or the whole answer.
pub(super) async fn settle_and_read(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = stage(2).await;
    let source = id(&stage, "source").await;
    let explored = stage
        .explore(name, depth.bound(1, None), async |run| {
            let key = keys(run, 1);
            let claimed = stage.leased(0, &key).await;
            let programs = vec![
                program(settle(stage.nodes[0].clone(), claimed)),
                program(read(stage.nodes[1].clone(), source, key[0].clone())),
            ];
            stage.order(programs, move |stage, results| async move {
                let told = &results[1];
                assert!(*told == "processing" || *told == kept(), "{told}");
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored]
}

/// A client reads while its answer's time passes and the keeper empties it: the whole answer or that it is gone, never
/// less than either.
pub(super) async fn purge_and_read(name: &str, depth: Depth) -> Vec<Explored> {
    let stage = stage(1).await;
    let source = id(&stage, "source").await;
    let plain = Arc::new(stage.plain().await);
    let explored = stage
        .explore(name, depth.bound(2, None), async |run| {
            let key = keys(run, 1);
            let event = ended(&stage, &key[0], GOOD).await;
            let keeper = Arc::clone(&plain);
            let node = stage.nodes[0].clone();
            let again = key[0].clone();
            let programs = vec![
                program(async move {
                    let first = read(node.clone(), source, again.clone()).await;
                    json!([first, read(node, source, again).await])
                }),
                program(async move {
                    let over = format!("UPDATE oncehook.response SET expires_at = now() - interval '1 s' WHERE event_id = '{event}'");
                    keeper.batch_execute(&over).await.unwrap();
                    keeper.execute(PURGE, &[&500_i64]).await.unwrap().into()
                }),
            ];
            stage.order(programs, move |stage, results| async move {
                let told = results[0].as_array().unwrap();
                assert!(told.iter().all(|told| *told == "gone" || *told == kept()), "{told:?}");
                assert!(told[0] == kept() || told[1] == "gone", "{told:?}");
                assert_eq!(results[1], json!(1), "emptied once");
                stage.check(&key).await;
            })
        })
        .await;
    vec![explored]
}
