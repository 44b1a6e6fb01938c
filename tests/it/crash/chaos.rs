//! The main promise under fire: nodes killed, PostgreSQL restarted and killed, senders that come
//! again until they are told 200; then an outside checker compares what was acknowledged with
//! what is stored and booked.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::inbox::event;
use crate::support::{Node, OwnCluster, TestApp, TestDb, until};

use super::{Sender, ledger};

const EVENTS: usize = 2_000;
/// Copies sent beside the first ones, to whichever node comes next.
const COPIES: usize = EVENTS * 3 / 10;
const CLIENTS: usize = 16;
/// Requests that senders may be ahead of the faults, so that each fault hits work under way and
/// none comes too late.
const AHEAD: usize = 200;
/// Before a sender comes again.
const BACK_OFF: Duration = Duration::from_millis(100);

const HANDLER: &str = "lease = \"3s\"\nretry = { for = \"1h\", first = \"50ms\", max = \"500ms\" }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_under_sigkill_and_restarts_book_each_event_once() {
    let cluster = OwnCluster::start().await;
    let db = cluster.database().await;
    let mut app = ledger()
        .sql_handler("ledger", "app.book", HANDLER)
        .on(db)
        .start()
        .await;
    let mut second = app.another_node().await;

    let allowance = Arc::new(Semaphore::new(AHEAD));
    let clients = send_from_clients(&app, &second, &allowance);
    fire(&cluster, &mut app, &mut second, &allowance).await;
    allowance.add_permits(EVENTS + COPIES);
    let acknowledged: BTreeSet<String> = clients.join_all().await.into_iter().flatten().collect();

    assert_eq!(acknowledged.len(), EVENTS);
    until("nothing is left to do", async || {
        app.db.count("delivery").await == 0
    })
    .await;
    check(&app.db, &acknowledged).await;
    app.db.verify().await;
}

/// Each client sends its own share of events and of copies and comes again until it is told 200;
/// returns the ids that were acknowledged.
fn send_from_clients(
    first: &Node,
    second: &Node,
    allowance: &Arc<Semaphore>,
) -> JoinSet<Vec<String>> {
    // Every copy is of another event, some before and some behind their original.
    let numbers: Vec<usize> = (0..EVENTS)
        .chain((0..COPIES).map(|n| (n * 7_919) % EVENTS))
        .collect();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let nodes = [Sender::to(first), Sender::to(second)];
        let mut share: Vec<usize> = numbers
            .iter()
            .copied()
            .skip(client)
            .step_by(CLIENTS)
            .collect();
        // Copies are spread over the whole time.
        share.sort_by_key(|n| (n * 31) % 101);
        let allowance = Arc::clone(allowance);
        clients.spawn(async move {
            let mut acknowledged = Vec::new();
            for (turn, n) in share.into_iter().enumerate() {
                allowance.acquire().await.unwrap().forget();
                let id = format!("evt_{n}");
                let paid = event(&id, "charge.succeeded", json!({"id": "ch", "amount": n}));
                let mut node = turn % 2;
                while !matches!(nodes[node].send(&paid).await, Some((200, _))) {
                    node = 1 - node;
                    tokio::time::sleep(BACK_OFF).await;
                }
                acknowledged.push(id);
            }
            acknowledged
        });
    }
    clients
}

/// What happens meanwhile. Each fault waits until senders have got on a little.
async fn fire(cluster: &OwnCluster, first: &mut TestApp, second: &mut Node, allowance: &Semaphore) {
    let until_more = async |requests: usize| {
        allowance.add_permits(requests);
        until("senders get on", async || {
            allowance.available_permits() < AHEAD
        })
        .await;
    };
    for round in 0..4 {
        until_more(150).await;
        first.kill9();
        until_more(150).await;
        first.restart().await;
        until_more(150).await;
        second.kill9();
        if round % 2 == 0 {
            // Nobody serves for a moment.
            first.kill9();
            first.restart().await;
        }
        second.restart().await;
        if round % 2 == 1 {
            until_more(150).await;
            if round == 3 {
                cluster.kill().await;
            }
            cluster.restart().await;
        }
    }
}

/// Compares from outside: the senders' list, the tables, and a ledger without a conflict clause.
async fn check(db: &TestDb, acknowledged: &BTreeSet<String>) {
    let set = |keys: Vec<String>| keys.into_iter().collect::<BTreeSet<_>>();
    let keys: Vec<String> = db.all("SELECT key FROM oncehook.event_key").await;
    assert_eq!(keys.len(), acknowledged.len());
    assert_eq!(&set(keys), acknowledged, "stored");
    let events: Vec<String> = db.all("SELECT key FROM oncehook.event").await;
    assert_eq!(events.len(), acknowledged.len(), "one event per key");
    assert_eq!(&set(events), acknowledged);

    let mut booked: HashMap<String, i64> = HashMap::new();
    for row in db.rows("SELECT key, amount FROM app.ledger", &[]).await {
        let (key, amount): (String, i64) = (row.get(0), row.get(1));
        assert_eq!(key, format!("evt_{amount}"), "the body belongs to the key");
        *booked.entry(key).or_default() += 1;
    }
    let twice: Vec<_> = booked.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "booked more than once: {twice:?}");
    assert_eq!(&booked.into_keys().collect::<BTreeSet<_>>(), acknowledged);

    let outcomes = "SELECT result, count(*) FROM oncehook.outcome GROUP BY result";
    let outcomes: Vec<(String, i64)> = db
        .rows(outcomes, &[])
        .await
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let all = i64::try_from(acknowledged.len()).unwrap();
    assert_eq!(outcomes, [("succeeded".to_owned(), all)]);
    assert_eq!(db.count("conflict").await, 0);
}
