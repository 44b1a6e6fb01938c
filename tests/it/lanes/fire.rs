//! Lanes of every setting at once, while nodes and the database are killed: each keeps its order, and
//! none stands still but for what a person has to say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::crash::{POLL, QUICK, put_at_last};
use crate::support::judge::trial::{CALL_LINES, CALL_SECRET};
use crate::support::node::free_address;
use crate::support::{Node, OwnCluster, Received, Receiver, Reply, TestApp, until};

use super::{LINES, about, key, written};

const OBJECTS: [&str; 3] = ["ch_a", "ch_b", "ch_c"];
/// Events per object.
const EVENTS: usize = 36;
/// Of `ch_b`, one that can never be done.
const BROKEN: usize = 5;
/// Applied, and the answer is lost.
const CUT_AFTER: usize = 11;
/// Not applied, and no answer.
const CUT_BEFORE: usize = 22;

/// `lines` gives way to the next where a head is dead, `strict` waits for a person.
const STRICT: &str = "
CREATE TABLE app.strict_line (no bigint GENERATED ALWAYS AS IDENTITY, lane text, n int NOT NULL);
CREATE FUNCTION app.write_strictly(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.strict_line (lane, n) VALUES (event.entity, (oncehook.body_json(event) -> 'data' -> 'object' ->> 'amount')::int);
  IF EXISTS (SELECT FROM app.broken WHERE key = event.key) THEN RAISE EXCEPTION 'no such account' USING ERRCODE = 'OH001'; END IF;
END $$;
INSERT INTO app.broken VALUES ('evt_ch_b_5');
";

/// What the receiver has applied, per handler and object, in order.
type Applied = Arc<Mutex<BTreeMap<(String, String), Vec<usize>>>>;

/// Ignores effect keys, and loses an answer before and one behind the effect.
async fn receiver() -> (Receiver, Applied) {
    let applied = Applied::default();
    let (seen, lost) = (Arc::clone(&applied), Mutex::new(Vec::new()));
    let receiver = Receiver::answering(free_address(), move |call: Received| {
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        let object = &body["data"]["object"];
        let n = usize::try_from(object["amount"].as_u64().unwrap()).unwrap();
        let lane = (call.path.clone(), object["id"].as_str().unwrap().to_owned());
        let mut lost = lost.lock().unwrap();
        let first = !lost.contains(&(lane.clone(), n));
        if first && [CUT_BEFORE, CUT_AFTER].contains(&n) {
            lost.push((lane.clone(), n));
        }
        if !(first && n == CUT_BEFORE) {
            seen.lock().unwrap().entry(lane).or_default().push(n);
        }
        let reply = match n {
            CUT_BEFORE | CUT_AFTER if first => Reply::cut(),
            _ => Reply::status(200),
        };
        Box::pin(std::future::ready(reply))
    });
    (receiver.await, applied)
}

async fn start(cluster: &OwnCluster, receiver: &Receiver) -> TestApp {
    let sql = |more: &str| format!("lane = \"entity\"\n{more}lease = \"1s\"\n{QUICK}");
    let calls = |on_uncertain: &str| {
        format!(
            "secrets = [{{ label = \"a\", value = {CALL_SECRET:?} }}]\nlane = \"entity\"\non_unknown = \"hold\"\n\
             lane_on_uncertain = {on_uncertain:?}\n{CALL_LINES}"
        )
    };
    TestApp::builder()
        .stripe("stripe")
        .setup(LINES)
        .setup(STRICT)
        .toml(POLL)
        .sql_handler("lines", "app.write", &sql(""))
        .sql_handler(
            "strict",
            "app.write_strictly",
            &sql("lane_on_dead = \"hold\"\n"),
        )
        .http_handler("waits", &receiver.url("/waits"), &calls("wait"))
        .http_handler("skips", &receiver.url("/skips"), &calls("skip"))
        .on(cluster.database().await)
        .start()
        .await
}

/// Deliveries that wait for a person: object, number, handler.
async fn open(app: &TestApp) -> Vec<(String, usize, String)> {
    let sql = "SELECT e.entity, e.key, h.name FROM oncehook.delivery d JOIN oncehook.event e ON e.id = d.event_id
                 JOIN oncehook.handler h ON h.id = d.handler_id WHERE d.state IN ('uncertain', 'held')";
    let rows = app.db.rows(sql, &[]).await;
    let number = |key: String| key.rsplit('_').next().unwrap().parse().unwrap();
    rows.iter()
        .map(|row| (row.get(0), number(row.get(1)), row.get(2)))
        .collect()
}

/// Says what the receiver's own list says; a call that may be under way is left for later.
async fn decide(app: &TestApp, node: &Node, applied: &Applied) {
    for (object, n, handler) in open(app).await {
        let lane = (format!("/{handler}"), object.clone());
        let is_there = |n| applied.lock().unwrap().get(&lane).unwrap().contains(&n);
        let word = match handler.as_str() {
            "strict" => "dead",
            _ if is_there(n) => "succeeded",
            _ => "retry",
        };
        let body = json!({ "handler": handler, "as": word, "reason": "asked by telephone" });
        let key = key(&object, n);
        let (status, _) = node.resolve("stripe", &key, &body).await;
        assert!(
            status == 200 || (status == 409 && word == "retry"),
            "{status}: {key} {handler}"
        );
    }
}

/// A fault; which one it is goes round.
async fn fault(number: usize, cluster: &OwnCluster, app: &mut TestApp, second: &mut Node) {
    match number % 4 {
        0 => {
            app.kill9();
            app.restart().await;
        }
        1 => {
            cluster.kill().await;
            cluster.restart().await;
        }
        2 => {
            second.kill9();
            second.restart().await;
        }
        _ => {
            app.kill9();
            second.kill9();
            cluster.kill().await;
            cluster.restart().await;
            app.restart().await;
            second.restart().await;
        }
    }
}

#[tokio::test]
async fn every_lane_keeps_its_order_and_goes_on_while_nodes_and_database_are_killed() {
    let cluster = OwnCluster::start().await;
    let (receiver, applied) = receiver().await;
    let mut app = start(&cluster, &receiver).await;
    let mut second = app.another_node().await;
    for n in 0..EVENTS {
        for object in OBJECTS {
            put_at_last([&app, &second], &about(object, n)).await;
        }
        if n % 4 == 3 {
            fault(n / 4, &cluster, &mut app, &mut second).await;
        }
    }
    let numbers = |all: std::ops::Range<usize>| all.map(|n| i32::try_from(n).unwrap());
    let done: Vec<i32> = numbers(0..EVENTS).collect();
    let mut but_broken = done.clone();
    but_broken.retain(|n| *n != i32::try_from(BROKEN).unwrap());

    // Nothing is left to do by itself.
    until("the rest waits for people", async || {
        app.db
            .count("delivery WHERE state IN ('ready', 'leased')")
            .await
            == 0
    })
    .await;
    let lines = written(&app.db).await;
    assert_eq!(
        (&lines["ch_a"], &lines["ch_b"], &lines["ch_c"]),
        (&done, &but_broken, &done)
    );
    let strictly = async |lane: &str| {
        let sql = format!("SELECT n FROM app.strict_line WHERE lane = '{lane}' ORDER BY no");
        app.db.all::<i32>(&sql).await
    };
    assert_eq!(strictly("ch_a").await, done);
    assert_eq!(
        strictly("ch_b").await,
        numbers(0..BROKEN).collect::<Vec<_>>()
    );
    let blocked = "SELECT DISTINCT h.name FROM oncehook.delivery d JOIN oncehook.handler h ON h.id = d.handler_id
                    WHERE d.state = 'blocked' ORDER BY 1";
    assert_eq!(app.db.all::<String>(blocked).await, ["strict", "waits"]);
    // Of each object at the least those whose answers were lost.
    let open = open(&app).await;
    let of = |handler: &str| open.iter().filter(|(.., h)| h == handler).count();
    assert_eq!((of("strict"), of("waits")), (1, OBJECTS.len()), "{open:?}");
    assert!(of("skips") >= 2 * OBJECTS.len(), "{open:?}");
    app.db.verify().await;

    until("people have decided everything", async || {
        decide(&app, &second, &applied).await;
        app.db.count("delivery").await == 0
    })
    .await;
    assert_eq!(strictly("ch_b").await, but_broken);
    let applied = applied.lock().unwrap().clone();
    for object in OBJECTS {
        let lane = |path: &str| applied[&(path.to_owned(), object.to_owned())].clone();
        assert_eq!(lane("/waits"), (0..EVENTS).collect::<Vec<_>>(), "{object}");
        // What was sent again came behind the others, and everything came once.
        let mut skips = lane("/skips");
        assert!(!skips.is_sorted(), "{object}: {skips:?}");
        skips.sort_unstable();
        assert_eq!(skips, (0..EVENTS).collect::<Vec<_>>(), "{object}");
    }
    app.db.verify().await;
}
