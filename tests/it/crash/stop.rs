//! Ends that were asked for, and announcements that come early, late or never.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{Action, until};

use super::{
    Barrier, QUICK, Sender, begin_handling, booked, end_leases, held_booking, ledger, paid,
    proxied, put, storing_ledger, until_booked_once, verdicts,
};

#[tokio::test]
async fn a_node_that_is_asked_to_end_gives_back_what_it_has_not_begun() {
    let mut app = storing_ledger()
        .setup(super::BOOK_BEHIND_BARRIER)
        .sql_handler("ledger", "app.book_behind_barrier", "lease = \"1h\"")
        .start()
        .await;
    for n in 0..10 {
        put(&app, &paid(&format!("evt_{n}"))).await;
    }
    let barrier = Barrier::closed(&app.db).await;
    begin_handling(&mut app).await;
    barrier.until_waited(&app.db).await;
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 10);
    app.sigterm();
    app.until_logged("nothing more is claimed").await;
    // A batch takes on events for 20 ms: this one has been held for longer.
    until("the batch takes on no more", async || {
        app.db
            .one(
                "SELECT coalesce(bool_or(clock_timestamp() - query_start > '25 ms'), false) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event = 'advisory'",
            )
            .await
    })
    .await;
    barrier.open().await;
    assert_eq!(app.exit().await.code(), Some(0));
    // The one that ran is done, the others wait for nobody's lease.
    assert_eq!(app.db.count("outcome").await, 1);
    let ready = app.db.count("delivery WHERE state = 'ready'").await;
    assert_eq!(ready, 9, "what was not begun is given back");
    let toml = app.toml().to_owned();
    let second = app.another_node_with(&toml).await;
    for n in 0..10 {
        let key = format!("evt_{n}");
        let outcome = until_booked_once(&second, &app.db, &key).await;
        assert_eq!(outcome["attempts"], 1);
        assert!(verdicts(&second, &key).await.is_empty());
    }
    app.db.verify().await;
}

#[tokio::test]
async fn a_handler_that_outlasts_the_grace_is_abandoned_and_run_again() {
    let lines = format!("{QUICK}\ntimeout = \"1m\"");
    let mut app = held_booking(&lines)
        .env("ONCEHOOK_DISPATCH__GRACE", "200ms")
        .start()
        .await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&app.db).await;
    let start = Instant::now();
    assert_eq!(app.stop().await.code(), Some(0));
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    barrier.open().await;
    let second = app.another_node().await;
    until("its transaction is over", async || {
        booked(&app.db, "evt_1").await == 0
    })
    .await;
    end_leases(&app.db).await;
    until_booked_once(&second, &app.db, "evt_1").await;
    app.db.verify().await;
}

#[tokio::test]
async fn ended_under_load_a_node_loses_nothing_and_the_other_goes_on() {
    let mut app = held_booking(QUICK).start().await;
    let second = app.another_node().await;
    let mut senders = JoinSet::new();
    for client in 0..8 {
        let sender = Sender::to(&app);
        senders.spawn(async move {
            let mut acknowledged = Vec::new();
            // Until the node is gone.
            for n in 0.. {
                let key = format!("evt_{client}_{n}");
                match sender.send(&paid(&key)).await {
                    Some((200, _)) => acknowledged.push(key),
                    Some((status, _)) => panic!("answered {status}"),
                    None => break,
                }
            }
            acknowledged
        });
    }
    until("work is done under load", async || {
        app.db.count("outcome").await > 50
    })
    .await;
    assert_eq!(app.stop().await.code(), Some(0));
    let acknowledged: Vec<String> = senders.join_all().await.into_iter().flatten().collect();
    until("the other node finishes it", async || {
        app.db.count("delivery").await == 0
    })
    .await;
    for key in &acknowledged {
        assert_eq!(booked(&app.db, key).await, 1, "{key}");
    }
    assert_eq!(
        app.db.count("app.ledger").await,
        app.db.count("event").await
    );
    assert_eq!(
        app.db
            .count("outcome WHERE result <> 'succeeded' OR attempts > 1")
            .await,
        0
    );
    drop(second);
    app.db.verify().await;
}

/// A balancer that asks two nodes now and then whether they are ready, and sends to one that was.
struct Balancer {
    ready: [AtomicBool; 2],
    senders: [Sender; 2],
}

impl Balancer {
    async fn look(&self, addresses: [std::net::SocketAddr; 2], http: reqwest::Client) {
        loop {
            for (ready, address) in self.ready.iter().zip(addresses) {
                let asked = http.get(format!("http://{address}/readyz")).send().await;
                let is_ready = asked.is_ok_and(|answer| answer.status() == 200);
                ready.store(is_ready, Ordering::SeqCst);
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// The answer of the node whose turn it is, or of the other one while it is not ready.
    async fn send(&self, turn: usize, key: &str) -> Option<(u16, bool)> {
        let node = loop {
            let is_ready = |node: &usize| self.ready[*node].load(Ordering::SeqCst);
            match [turn % 2, 1 - turn % 2].into_iter().find(is_ready) {
                Some(node) => break node,
                // As a sender waits for a balancer that has nobody.
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        self.senders[node].send(&paid(key)).await
    }
}

#[tokio::test]
async fn f84_two_nodes_replaced_one_after_the_other_under_load_answer_everything_200() {
    let mut first = ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .env("ONCEHOOK_LISTEN__DRAIN", "4s")
        .start()
        .await;
    let mut second = first.another_node().await;
    let balancer = Arc::new(Balancer {
        ready: [AtomicBool::new(true), AtomicBool::new(true)],
        senders: [Sender::to(&first), Sender::to(&second)],
    });
    let (known, http) = (Arc::clone(&balancer), first.http.clone());
    let addresses = [first.public, second.public];
    let looking = tokio::spawn(async move { known.look(addresses, http).await });
    let end = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let (balancer, end) = (Arc::clone(&balancer), Arc::clone(&end));
        clients.spawn(async move {
            let mut sent = 0;
            while !end.load(Ordering::SeqCst) {
                let key = format!("evt_{client}_{sent}");
                let answer = balancer.send(sent, &key).await;
                assert_eq!(answer, Some((200, false)), "{key}");
                sent += 1;
            }
            sent
        });
    }
    let is_ready = async |node: usize, wanted: bool| {
        until("the balancer notices", async || {
            balancer.ready[node].load(Ordering::SeqCst) == wanted
        })
        .await;
    };
    for node in 0..2 {
        let before = first.db.count("event").await;
        until("both are under load", async || {
            first.db.count("event").await > before + 50
        })
        .await;
        let replaced = if node == 0 { &mut *first } else { &mut second };
        assert_eq!(replaced.stop().await.code(), Some(0));
        is_ready(node, false).await;
        replaced.restart().await;
        is_ready(node, true).await;
    }
    let db = &first.db;
    end.store(true, Ordering::SeqCst);
    let sent: usize = clients.join_all().await.into_iter().sum();
    looking.abort();
    until("all is handled", async || db.count("delivery").await == 0).await;
    let sent = i64::try_from(sent).unwrap();
    assert_eq!(db.count("event").await, sent);
    assert_eq!(db.count("app.ledger").await, sent);
    let keys: i64 = db.one("SELECT count(DISTINCT key) FROM app.ledger").await;
    assert_eq!(keys, sent, "every effect once");
    db.verify().await;
}

#[tokio::test]
async fn f39_nothing_is_begun_before_its_commit_and_nothing_that_was_rolled_back() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .on(db)
        .database_url(&url)
        .start()
        .await;
    let toml = app
        .toml()
        .replace(&url, &app.db.url)
        .replace("enabled = false", "enabled = true");
    let worker = app.another_node_with(&toml).await;

    proxy.arm_after("ingest_reserve:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    // The worker takes what comes later, and looks for more.
    for n in 0..3 {
        let key = format!("evt_later_{n}");
        put(&worker, &paid(&key)).await;
        until_booked_once(&worker, &app.db, &key).await;
    }
    assert_eq!(booked(&app.db, "evt_1").await, 0);
    proxy.thaw();
    until_booked_once(&worker, &app.db, "evt_1").await;
    drop(sent.await);

    proxy.arm_after("ingest_reserve:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_2"));
    proxy.until_fired(2).await;
    app.kill9();
    proxy.cut();
    put(&worker, &paid("evt_3")).await;
    until_booked_once(&worker, &app.db, "evt_3").await;
    assert_eq!(worker.timeline("stripe", "evt_2").await, None);
    assert_eq!(booked(&app.db, "evt_2").await, 0);
    drop(sent.await);
    app.db.verify().await;
}

#[tokio::test]
async fn f39_a_wake_up_that_is_lost_costs_a_poll() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .on(db)
        .database_url(&url)
        .start()
        .await;
    let toml = app
        .toml()
        .replace(&url, &app.db.url)
        .replace("enabled = false", "enabled = true");
    let worker = app.another_node_with(&toml).await;
    proxy.arm("NOTIFY oncehook_work", Action::CutBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    until_booked_once(&worker, &app.db, "evt_1").await;
    app.db.verify().await;
}
