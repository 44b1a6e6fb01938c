//! The main promise under fire: nodes killed, PostgreSQL restarted and killed, senders that come
//! again until they are told 200, a service that answers badly; then the outside judge compares
//! what was acknowledged with what is stored, booked and applied. `oncehook verify` finds nothing,
//! then and in the midst of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::judge::trial::{CALL_LINES, PAID, REFUNDED, SHIPPED, SQL_LINES};
use crate::support::judge::{Behaviour, Message, Provider, Trial};
use crate::support::{Node, OwnCluster, TestApp, until};

use super::POLL;

const EVENTS: usize = 2_000;
/// Copies sent beside the first ones, to whichever node comes next.
const COPIES: usize = EVENTS * 3 / 10;
/// Of every so many acknowledged events, one is followed by other content under its key.
const CONFLICT_EVERY: usize = 97;
const CLIENTS: usize = 16;
/// Requests that senders may be ahead of the faults, so that each fault hits work under way and
/// none comes too late.
const AHEAD: usize = 200;
/// Before a sender comes again.
const BACK_OFF: Duration = Duration::from_millis(100);

const REPRODUCE: &str = "cargo test --test it -- crash::chaos";

/// Half of the events' first calls go wrong in some way.
fn plan(key: &str, calls_before: usize) -> Behaviour {
    if calls_before > 0 {
        return Behaviour::Good;
    }
    match key.bytes().map(usize::from).sum::<usize>() % 8 {
        0 => Behaviour::Slow(Duration::from_millis(400)),
        1 => Behaviour::Cut,
        2 => Behaviour::ErrorAfter,
        3 => Behaviour::ErrorBefore,
        _ => Behaviour::Good,
    }
}

fn message(n: usize) -> Message {
    let event_type = match n % 10 {
        0 | 1 => SHIPPED,
        2 | 3 => REFUNDED,
        _ => PAID,
    };
    Message::original(n, event_type)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_under_sigkill_and_restarts_have_each_effect_once() {
    let trial = Trial::new(true, plan).await;
    let cluster = OwnCluster::start().await;
    let db = cluster.database().await;
    let mut app = trial
        .app(SQL_LINES, CALL_LINES)
        .toml(POLL)
        .on(db)
        .start()
        .await;
    let mut second = app.another_node().await;

    let allowance = Arc::new(Semaphore::new(AHEAD));
    let clients = send_from_clients(&trial.provider, [&app, &second], &allowance);
    fire(&cluster, &mut app, &mut second, &allowance).await;
    allowance.add_permits(EVENTS + COPIES);
    clients.join_all().await;

    until("nothing is left to do", async || {
        app.db.count("delivery").await == 0
    })
    .await;
    trial.flush().await;
    assert_eq!(trial.judge.acknowledged(), EVENTS);
    trial.judge.acquit(&app.db.client().await, REPRODUCE).await;
    app.db.verify().await;
}

/// Each client sends its own share of events and of copies and comes again until it is told 200.
fn send_from_clients(
    provider: &Provider,
    nodes: [&Node; 2],
    allowance: &Arc<Semaphore>,
) -> JoinSet<()> {
    // Every copy is of another event, some before and some behind their original.
    let messages: Vec<Message> = (0..EVENTS)
        .map(message)
        .chain((0..COPIES).map(|n| message((n * 7_919) % EVENTS).copy()))
        .collect();
    let nodes = nodes.map(|node| node.public);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut share: Vec<Message> = messages
            .iter()
            .skip(client)
            .step_by(CLIENTS)
            .cloned()
            .collect();
        // Copies are spread over the whole time.
        share.sort_by_key(|message| (message.amount * 31) % 101);
        let (provider, allowance) = (provider.clone(), Arc::clone(allowance));
        clients.spawn(async move {
            for (turn, message) in share.into_iter().enumerate() {
                allowance.acquire().await.unwrap().forget();
                let mut requests = vec![message];
                if turn % CONFLICT_EVERY == 0 {
                    requests.push(requests[0].conflict());
                }
                for request in requests {
                    let mut node = turn % 2;
                    while provider
                        .send(nodes[node], &request)
                        .await
                        .is_none_or(|told| told.status != 200)
                    {
                        node = 1 - node;
                        tokio::time::sleep(BACK_OFF).await;
                    }
                }
            }
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
        // Its leases have not ended, its work is half done.
        first.db.verify().await;
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
        first.db.verify().await;
    }
}
