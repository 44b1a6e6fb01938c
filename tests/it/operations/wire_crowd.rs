//! Many at once: one intent from many clients, and many clients that wait.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;

use crate::support::{Gate, Receiver, Reply, until};

use super::wire::{Answer, Client, app, booking, calling, send};

/// All have the same answer, which one of them brought about.
fn one_brought_it(answers: &[Answer]) {
    let first = &answers[0];
    for answer in answers {
        assert_eq!(answer.kept(), first.kept());
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let own = answers.iter().filter(|answer| !answer.replayed()).count();
    assert_eq!(own, 1);
}

#[tokio::test]
async fn the_same_key_at_once_is_carried_out_once() {
    let mut app = app(&booking("pay", "wait = \"30s\"")).start().await;
    let node = app.another_node().await;
    let nodes = [Client::of(&app), Client::at(node.api)];
    for (key, clients, spread) in [("two", 2, 1), ("fifty", 50, 1), ("nodes", 50, 2)] {
        let sent = (0..clients).map(|n| {
            let client = &nodes[n % spread];
            client.submit("pay", key, r#"{"amount": 5}"#)
        });
        one_brought_it(&join_all(sent).await);
    }
    assert_eq!(app.db.count("app.payment").await, 3);
    assert_eq!(app.db.count("outcome").await, 3);
    app.db.verify().await;
}

#[tokio::test]
async fn a_thousand_clients_wait_over_a_handful_of_sessions() {
    const CLIENTS: usize = 1_000;
    const KEYS: usize = 10;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{\"paid\":true}").behind(&gate));
    let lines = "on_unknown = \"hold\"\nwait = \"1m\"\ntimeout = \"2m\"";
    let app = app(&calling("pay", &receiver, lines)).start().await;
    let client = Client::of(&app);
    let sent = (0..CLIENTS).map(|n| {
        let intent = client.intent("pay", &format!("k{}", n % KEYS), r#"{"amount": 5}"#);
        tokio::spawn(send(intent))
    });
    let sent: Vec<_> = sent.collect();
    receiver.until_requests(KEYS).await;
    until("all of them are known", async || {
        let known: Option<i64> = app
            .db
            .one("SELECT sum(count)::bigint FROM oncehook.receipt")
            .await;
        known.unwrap_or(0) == i64::try_from(CLIENTS - KEYS).unwrap()
    })
    .await;
    let sessions = "SELECT count(*) FROM pg_stat_activity \
                    WHERE datname = current_database() AND application_name = 'oncehook'";
    let sessions: i64 = app.db.one(sessions).await;
    // Ingest 3, dispatch 4 + 1, house-keeping 4, queries 3, waiting 2, wake-ups 1.
    assert!(sessions <= 18, "{sessions} sessions");
    gate.open();
    for answer in join_all(sent).await {
        assert_eq!(answer.unwrap().status, 201);
    }
    assert_eq!(receiver.requests().len(), KEYS);
}

#[tokio::test]
async fn whoever_is_one_too_many_to_wait_is_told_202_at_once() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{\"paid\":true}").behind(&gate));
    let toml = calling(
        "pay",
        &receiver,
        "on_unknown = \"hold\"\nwait = \"1m\"\ntimeout = \"2m\"",
    ) + "[limits]\nwaiting = 1\n";
    let app = app(&toml).start().await;
    let client = Client::of(&app);
    let first = tokio::spawn(send(client.intent("pay", "k", r#"{"amount": 5}"#)));
    receiver.until_requests(1).await;
    let second = client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(second.status, 202, "{second:?}");
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
}

#[tokio::test]
async fn nothing_is_held_in_the_database_during_a_call() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.always(Reply::status(201).body("{\"paid\":true}").behind(&gate));
    let lines = "on_unknown = \"hold\"\nwait = \"1m\"\ntimeout = \"2m\"";
    let app = app(&calling("pay", &receiver, lines)).start().await;
    let client = Client::of(&app);
    let waiting = tokio::spawn(send(client.intent("pay", "k", r#"{"amount": 5}"#)));
    receiver.until_requests(1).await;
    // Statements of a moment come and go; what is held for the call would be there at every look.
    let held = "SELECT a.pid::text || ' ' || a.backend_start::text || ' ' || a.xact_start::text \
                  FROM pg_stat_activity a \
                 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL \
                   AND a.backend_type = 'client backend'";
    let locks = "SELECT l.pid::text || ' ' || l.relation::regclass::text || ' ' || l.mode FROM pg_locks l \
                 JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname IN ('oncehook', 'app') AND l.pid <> pg_backend_pid() AND l.mode <> 'AccessShareLock'";
    let mut always: Option<HashSet<String>> = None;
    for _ in 0..20 {
        let mut now: HashSet<String> = app.db.all::<String>(held).await.into_iter().collect();
        now.extend(app.db.all::<String>(locks).await);
        always = Some(match always {
            None => now,
            Some(before) => before.intersection(&now).cloned().collect(),
        });
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    assert_eq!(always.unwrap(), HashSet::new());
    gate.open();
    assert_eq!(waiting.await.unwrap().status, 201);
}
