//! Services that ignore effect keys, under the judge: one that can be asked applies each effect once,
//! one that cannot at most once, and whatever is open is seen.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::judge::trial::{CALL_LINES, SHIPPED, SQL_LINES};
use crate::support::judge::{Behaviour, Effects, Entry, Judge, Message, SOURCE, Trial, log};
use crate::support::{Node, TestApp, TestDb, until};

use super::until_done;

/// Applies when its caller has long given up: asked meanwhile, it says that nothing is there.
const SLOW: Behaviour = Behaviour::Slow(Duration::from_millis(1_500));

/// What the first calls of each event meet; later ones are good.
const MANNERS: [&[Behaviour]; 6] = [
    &[],
    &[SLOW],
    &[Behaviour::Cut],
    &[Behaviour::ErrorAfter],
    &[Behaviour::ErrorBefore],
    &[SLOW],
];

/// Calls out at once; a kill leaves no more than these unknown.
const CALLS: &str = "concurrency = 6";

fn manner(key: &str, calls_before: usize) -> Behaviour {
    let n: usize = key.strip_prefix("evt_").unwrap().parse().unwrap();
    let first = MANNERS[n % MANNERS.len()].get(calls_before);
    first.copied().unwrap_or(Behaviour::Good)
}

/// The judge that allows each effect once, though the service would apply every call.
fn strict(trial: &Trial) -> Judge {
    let mut judge = trial.judge.clone();
    for handler in &mut judge.handlers {
        if let Effects::Applied { honours_key, .. } = &mut handler.effects {
            *honours_key = true;
        }
    }
    judge
}

/// Keys in the service's log: called, and applied, in order.
fn service_log(trial: &Trial) -> (Vec<String>, Vec<String>) {
    let (mut called, mut applied) = (Vec::new(), Vec::new());
    for handler in &trial.judge.handlers {
        let Effects::Applied { log, .. } = &handler.effects else {
            continue;
        };
        for entry in log::read(log) {
            match entry {
                Entry::Called { key, .. } => called.push(key),
                Entry::Applied { key, .. } => applied.push(key),
                _ => {}
            }
        }
    }
    (called, applied)
}

/// Sends a shipment of each manner in several rounds; a node is killed with calls out, another goes on.
async fn shipped_under_a_kill(trial: &Trial, app: &mut TestApp, rounds: usize) -> Node {
    let second = app.another_node().await;
    let events: Vec<_> = (0..rounds * MANNERS.len())
        .map(|n| Message::original(n, SHIPPED))
        .collect();
    let node = &*app;
    join_all(events.iter().map(|event| trial.put(node, event))).await;
    // Those that are slow, at the least.
    until("calls are out", async || {
        app.db.count("delivery WHERE state = 'leased'").await >= 2
    })
    .await;
    app.kill9();
    second
}

/// Keys of the events that are listed as uncertain.
pub(super) async fn uncertain(node: &Node) -> BTreeSet<String> {
    let (status, page) = node.get("/v1/events?state=uncertain&limit=500").await;
    assert_eq!(status, 200, "{page}");
    let events = page["events"].as_array().unwrap();
    let key = |event: &Value| event["key"].as_str().unwrap().to_owned();
    events.iter().map(key).collect()
}

/// People ask the service about all that is open, and say what they were told, once no call can be under
/// way any more.
async fn decide(trial: &Trial, db: &TestDb, node: &Node) {
    let open = uncertain(node).await;
    until("no call can be under way any more", async || {
        db.count("delivery WHERE in_flight_until > now()").await == 0
    })
    .await;
    trial.flush().await;
    let (_, applied) = service_log(trial);
    for key in &open {
        let word = if applied.contains(key) {
            "succeeded"
        } else {
            "retry"
        };
        let body = json!({ "handler": "shipping", "as": word, "reason": "asked by telephone" });
        let (status, said) = node.resolve(SOURCE, key, &body).await;
        assert_eq!(status, 200, "{key}: {said}");
    }
}

#[tokio::test]
async fn a_service_that_ignores_the_key_and_can_be_asked_applies_each_effect_once() {
    let trial = Trial::new(false, manner).await;
    let url = trial.service.probe_url();
    // The flight of a call is its lease, 5.3 s: the third time of each lies behind it.
    let probe = format!(
        "on_unknown = \"probe\"\nprobe = {{ url = {url:?}, after = [\"50ms\", \"400ms\", \"6s\", \"12s\"] }}\n{CALLS}"
    );
    let mut app = trial.app_with(&probe, SQL_LINES, CALL_LINES).start().await;
    let second = shipped_under_a_kill(&trial, &mut app, 4).await;
    until_done(&app.db).await;
    trial.flush().await;
    strict(&trial)
        .acquit(
            &app.db.client().await,
            "cargo test --test it -- judge::unknown",
        )
        .await;
    // It was not the service that prevented it, and something was asked and sent again.
    let (called, applied) = service_log(&trial);
    assert_eq!(applied.len(), 4 * MANNERS.len());
    assert!(called.len() >= applied.len() + 4, "{} calls", called.len());
    let by_probe = app.db.count("outcome WHERE decided_by = 'probe'").await;
    assert!(by_probe >= 12, "{by_probe}");
    assert!(uncertain(&second).await.is_empty());
    app.db.verify().await;
}

#[tokio::test]
async fn a_service_that_can_do_neither_applies_at_most_once_and_every_open_case_is_seen() {
    let trial = Trial::new(false, manner).await;
    let hold = format!("on_unknown = \"hold\"\n{CALLS}");
    let mut app = trial.app_with(&hold, SQL_LINES, CALL_LINES).start().await;
    let rounds = 2;
    let second = shipped_under_a_kill(&trial, &mut app, rounds).await;
    until("everything has ended or is uncertain", async || {
        app.db.count("delivery WHERE state <> 'uncertain'").await == 0
    })
    .await;
    until("the slow calls have applied", async || {
        trial.flush().await;
        let (called, applied) = service_log(&trial);
        let is_error = |key: &String| manner(key, 0) == Behaviour::ErrorBefore;
        called
            .iter()
            .all(|key| applied.contains(key) || is_error(key))
    })
    .await;
    let (called, applied) = service_log(&trial);
    let once = |keys: &[String]| keys.iter().collect::<BTreeSet<_>>().len() == keys.len();
    assert!(once(&called) && once(&applied), "{called:?}\n{applied:?}");
    // What is open is what the service was never heard of, and it stands where people look.
    let open = uncertain(&second).await;
    let in_doubt =
        "SELECT e.key FROM oncehook.delivery d JOIN oncehook.event e ON e.id = d.event_id";
    let live: BTreeSet<String> = app.db.all::<String>(in_doubt).await.into_iter().collect();
    assert_eq!(open, live);
    assert!(open.len() >= 5 * rounds, "{open:?}");
    let never_called = open.iter().filter(|key| !called.contains(key)).count();
    assert!(
        never_called <= 6,
        "only claims of the killed node: {open:?}"
    );
    app.db.verify().await;

    // What was claimed and never called meets its manner now, so that people are asked again.
    until("people have decided everything", async || {
        decide(&trial, &app.db, &second).await;
        app.db.count("delivery").await == 0
    })
    .await;
    trial.flush().await;
    strict(&trial)
        .acquit(
            &app.db.client().await,
            "cargo test --test it -- judge::unknown",
        )
        .await;
    app.db.verify().await;
}
