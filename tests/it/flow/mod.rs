//! What holds work back: pauses, caps over all nodes, the breaker, the retry budget, priorities.

mod breaker;
mod cap;
mod outage;
mod pause;
mod priority;
mod suspect;
mod upgrade;

use oncehook::store::flow::Pausable;
use oncehook::{Settings, Store};

use crate::crash::{metric, paid};
use crate::support::{Node, TestDb, until};

/// Sends so many events to a source, all acknowledged.
async fn put_many(node: &Node, source: &str, prefix: &str, count: usize) {
    for n in 0..count {
        let answer = node
            .post_stripe(source, &paid(&format!("{prefix}_{n}")))
            .await;
        assert_eq!(answer.status(), 200, "{}", node.output());
    }
}

/// The database as an operator's command has it.
fn operator(db: &TestDb) -> Store {
    Store::new(Settings::parse(&db.url).unwrap(), 1).unwrap()
}

async fn pause(db: &TestDb, what: Pausable, name: &str) {
    let paused = operator(db).pause(what, name, Some("a test"), "eva").await;
    paused.unwrap();
}

async fn resume(db: &TestDb, what: Pausable, name: &str) {
    operator(db).resume(what, name, None, "eva").await.unwrap();
}

/// Waits until a node knows of a pause, or of its end.
async fn until_known(node: &Node, name: &str, paused: bool) {
    let wanted = f64::from(u8::from(paused));
    until(&format!("{name} is {wanted}"), async || {
        metric(node, name).await == Some(wanted)
    })
    .await;
}
