//! The primary dies and a synchronous standby takes over: nothing acknowledged is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;

use crate::crash::{Sender, booking, ledger, paid, put, until_booked_once};
use crate::support::inbox::event;
use crate::support::{Node, PgProxy, Replicas, TestDb, until};

use super::{Set, fail_over, send_until_acknowledged};

const EVENTS: usize = 240;
const CLIENTS: usize = 8;
/// Before a sender comes again.
const BACK_OFF: Duration = Duration::from_millis(100);
const HANDLER: &str = "lease = \"3s\"\nretry = { for = \"1h\", first = \"50ms\", max = \"500ms\" }";

/// What the senders know.
#[derive(Debug, Default)]
struct Log {
    acknowledged: Mutex<BTreeSet<String>>,
    refused: AtomicUsize,
}

impl Log {
    fn acknowledged(&self) -> BTreeSet<String> {
        self.acknowledged.lock().unwrap().clone()
    }
}

/// Each client sends its share, to one node and the other, and comes again until it is told 200.
fn send(nodes: [&Node; 2], log: &Arc<Log>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let nodes = nodes.map(Sender::to);
        let log = Arc::clone(log);
        clients.spawn(async move {
            for n in (client..EVENTS).step_by(CLIENTS) {
                let id = format!("evt_{n}");
                let paid = event(&id, "charge.succeeded", json!({"id": "ch", "amount": n}));
                let mut node = n / CLIENTS % 2;
                while !matches!(nodes[node].send(&paid).await, Some((200, _))) {
                    log.refused.fetch_add(1, Ordering::SeqCst);
                    node = 1 - node;
                    tokio::time::sleep(BACK_OFF).await;
                }
                log.acknowledged.lock().unwrap().insert(id);
            }
        });
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_primary_killed_under_load_nothing_acknowledged_is_missing_or_done_twice() {
    let Set {
        db,
        proxy,
        replicas,
    } = Set::synchronous().await;
    // What a database or role says of durability does not count for an acknowledgement.
    let name = db.name.clone();
    db.execute_outside(&format!(
        "ALTER DATABASE {name} SET synchronous_commit = local"
    ))
    .await;
    let mut app = ledger()
        .sql_handler("ledger", "app.book", HANDLER)
        .database_url(proxy.url(&name))
        .on(db)
        .start()
        .await;
    let second = app.another_node().await;
    let log = Arc::new(Log::default());
    let clients = send([&app, &second], &log);
    until("senders get on", async || {
        log.acknowledged().len() >= EVENTS / 8
    })
    .await;

    // Commits are under way that no standby will get; then the primary is gone.
    replicas.cut_links();
    let before = log.refused.load(Ordering::SeqCst);
    until("senders are refused", async || {
        let all = log.acknowledged().len() == EVENTS;
        all || log.refused.load(Ordering::SeqCst) >= before + CLIENTS
    })
    .await;
    let acknowledged = log.acknowledged().len();
    replicas.primary.kill().await;
    let (_, db) = fail_over(&replicas, &proxy, &app.db).await;
    let promoted = Instant::now();
    until("senders get on again", async || {
        let now = log.acknowledged().len();
        now > acknowledged || now == EVENTS
    })
    .await;
    eprintln!(
        "{acknowledged} of {EVENTS} acknowledged before the kill, the next one {:.1?} after the promotion",
        promoted.elapsed()
    );

    clients.join_all().await;
    check(&db, &log.acknowledged()).await;
    // The same processes all along.
    for node in [&app as &Node, &second] {
        assert_eq!(node.get("/metrics").await.0, 200);
        until("it is ready", async || {
            node.http
                .get(format!("http://{}/readyz", node.public))
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 200)
        })
        .await;
    }
}

/// The senders' list against the survivor's tables and the ledger.
async fn check(db: &TestDb, acknowledged: &BTreeSet<String>) {
    assert_eq!(acknowledged.len(), EVENTS);
    let stored: BTreeSet<String> = db
        .all("SELECT key FROM oncehook.event")
        .await
        .into_iter()
        .collect();
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "acknowledged and not stored: {lost:?}");
    assert_eq!(db.count("event_key").await, db.count("event").await);
    until("nothing is left to do", async || {
        db.count("delivery").await == 0
    })
    .await;
    let mut booked: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for row in db.rows("SELECT key, amount FROM app.ledger", &[]).await {
        booked.entry(row.get(0)).or_default().push(row.get(1));
    }
    for (key, amounts) in &booked {
        assert_eq!(amounts.len(), 1, "{key} is booked more than once");
        assert_eq!(*key, format!("evt_{}", amounts[0]));
    }
    assert_eq!(&booked.into_keys().collect::<BTreeSet<_>>(), acknowledged);
    let sum: i64 = db.one("SELECT sum(amount)::bigint FROM app.ledger").await;
    assert_eq!(sum, i64::try_from(EVENTS * (EVENTS - 1) / 2).unwrap());
    db.verify().await;
}

#[tokio::test]
async fn with_all_servers_in_the_url_a_node_finds_the_primary_by_itself() {
    let replicas = Replicas::synchronous().await;
    let db = replicas.database().await;
    // A standby is first in the list and answers.
    let mut proxies = Vec::new();
    for url in replicas.urls() {
        proxies.push(PgProxy::start(url).await);
    }
    let hosts: Vec<_> = proxies.iter().map(|p| p.address().to_string()).collect();
    let (hosts, name) = (hosts.join(","), &db.name);
    let url = format!("postgresql://postgres@{hosts}/{name}?sslmode=disable");
    let app = booking().on(db).database_url(url).start().await;
    assert!(!put(&app, &paid("evt_1")).await);
    until_booked_once(&app, &app.db, "evt_1").await;

    replicas.primary.kill().await;
    let promoted = replicas.promote().await;
    let db = app.db.on_server(promoted.url());
    assert!(!send_until_acknowledged(&app, &paid("evt_2")).await);
    until_booked_once(&app, &db, "evt_2").await;
    assert!(put(&app, &paid("evt_1")).await, "it is known here too");
    until_booked_once(&app, &db, "evt_1").await;
}
