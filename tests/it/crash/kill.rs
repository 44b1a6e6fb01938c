//! SIGKILL at every point between the socket and the outcome, each followed by a restart.

use crate::dispatch::LEDGER;
use crate::support::signer::STRIPE_SECRET;
use crate::support::{Action, Gate, RawHttp, Receiver, Reply, TestApp, until};

use super::http::{calling, effect_keys};
use super::{
    Barrier, POLL, QUICK, Sender, begin_handling, booked, booking, held_booking, hold_two_batches,
    kill_before, ledger, paid, proxied, put, restart_after_leases, signed_request, storing_ledger,
    until_booked_once, until_disconnected, until_metric, verdicts,
};

#[tokio::test]
async fn killed_while_the_body_arrives_stores_nothing() {
    let mut app = booking().start().await;
    let mut raw = RawHttp::connect(app.public).await;
    // All that its signature covers has come; only the declared length says that more must follow.
    let whole = signed_request(&paid("evt_1"));
    let (_, body) = whole.split_once("\r\n\r\n").unwrap();
    let length = |bytes: usize| format!("Content-Length: {bytes}\r\n");
    let longer = whole.replace(&length(body.len()), &length(body.len() + 1));
    assert_ne!(longer, whole);
    assert!(raw.send(longer).await);
    // Another one is sent later and is through: the node has seen this one, too.
    assert!(!put(&app, &paid("evt_2")).await);
    app.kill9();
    until_disconnected(&app.db).await;
    let stored = app.db.count("event_key WHERE key = 'evt_1'").await;
    assert_eq!(stored, 0, "a body is stored before it is whole");
    assert_eq!(
        raw.read_all().await,
        "",
        "it is answered before it is whole"
    );
    app.restart().await;
    comes_again_and_again(&app, "evt_1").await;
}

/// The sender had no answer and comes again, twice: it is one event and one effect.
async fn comes_again_and_again(app: &TestApp, key: &str) {
    assert!(!put(app, &paid(key)).await, "{key} is new");
    assert!(put(app, &paid(key)).await, "{key} is known");
    until_booked_once(app, &app.db, key).await;
    app.db.verify().await;
}

/// Time that the processors have spent on a process.
#[cfg(target_os = "linux")]
fn cpu_time(pid: u32) -> std::time::Duration {
    let ns = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
        .sum();
    std::time::Duration::from_nanos(ns)
}

// Only there can be seen that the node is at work on it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn killed_while_the_signature_is_checked_stores_nothing() {
    // The last of many secrets fits, so that the check takes seconds and all else milliseconds.
    let secrets: Vec<String> = (0..200)
        .map(|n| format!("{{ label = \"n{n}\", value = \"whsec_of_somebody_else_{n}\" }}"))
        .chain([format!("{{ label = \"a\", value = {STRIPE_SECRET:?} }}")])
        .collect();
    let mut app = TestApp::builder()
        .setup(LEDGER)
        .toml(POLL)
        .toml(&format!(
            "[[source]]\nname = \"stripe\"\nprovider = \"stripe\"\nsecrets = [{}]\n",
            secrets.join(", ")
        ))
        .sql_handler("ledger", "app.book", QUICK)
        .start()
        .await;
    let mut event = paid("evt_1");
    event["padding"] = "x".repeat(1_000_000).into();
    let before = cpu_time(app.pid());
    let mut raw = RawHttp::connect(app.public).await;
    assert!(raw.send(signed_request(&event)).await);
    until("the node is at work on it", async || {
        cpu_time(app.pid()) > before + std::time::Duration::from_millis(300)
    })
    .await;
    app.kill9();
    assert_eq!(raw.read_all().await, "");
    until_disconnected(&app.db).await;
    let stored = app.db.count("event_key").await;
    assert_eq!(stored, 0, "it is stored before its signature is checked");
    app.restart().await;
    comes_again_and_again(&app, "evt_1").await;
}

#[tokio::test]
async fn killed_with_requests_in_the_queue_stores_none_of_them() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .on(db)
        .database_url(url)
        .start()
        .await;
    let mut sent = hold_two_batches(&app, &proxy).await;
    sent.push(Sender::to(&app).spawn(paid("evt_1")));
    until_metric(&app, "oncehook_ingest_queue_requests", |n| n >= 1.0).await;
    kill_before(&mut app, &proxy).await;
    let mut answers = Vec::new();
    for sent in sent {
        answers.push(sent.await.unwrap());
    }
    assert_eq!(answers, [None; 3], "who waits in the queue has no answer");
    assert_eq!(app.db.count("event_key").await, 0);
    begin_handling(&mut app).await;
    comes_again_and_again(&app, "evt_1").await;
}

#[tokio::test]
async fn f30_killed_before_the_commit_of_ingest_leaves_nothing() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = booking().on(db).database_url(url).start().await;
    proxy.arm_after("ingest_reserve:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    assert_eq!(sent.await.unwrap(), None, "nothing may be acknowledged");
    for table in ["event_key", "event", "request", "delivery"] {
        let rows = app.db.count(table).await;
        assert_eq!(rows, 0, "{table} has what was never committed");
    }
    app.restart().await;
    comes_again_and_again(&app, "evt_1").await;
}

#[tokio::test]
async fn f29_killed_between_commit_and_answer_it_is_handled_without_another_request() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    // It handles nothing yet: a claim of it on the wire would arrive too.
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm_after("ingest_reserve:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    app.kill9();
    assert_eq!(sent.await.unwrap(), None);
    // Its COMMIT is on the wire and arrives.
    proxy.thaw();
    until("the commit arrives", async || {
        app.db.count("event_key").await == 1
    })
    .await;
    until_disconnected(&app.db).await;
    let ready = app.db.count("delivery WHERE state = 'ready'").await;
    assert_eq!(ready, 1, "what is to do is committed with the event");
    begin_handling(&mut app).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 1);
    // The sender never heard of it and comes again.
    assert!(put(&app, &paid("evt_1")).await);
    assert_eq!(booked(&app.db, "evt_1").await, 1);
    assert_eq!(app.db.count("event").await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn f41_killed_after_the_claim_it_runs_when_the_lease_has_ended() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = ledger()
        .sql_handler("ledger", "app.book", "lease = \"2s\"")
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm("-- delivery_lock:", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    drop(sent.await);
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    assert_eq!(booked(&app.db, "evt_1").await, 0);
    // The only node inherits from itself.
    app.restart().await;
    until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(verdicts(&app, "evt_1").await[0], "lost");
    app.db.verify().await;
}

#[tokio::test]
async fn f30_killed_inside_the_handler_its_effect_is_rolled_back_and_made_once() {
    let mut app = held_booking(QUICK).start().await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&app.db).await;
    app.kill9();
    // The handler ends, but there is nobody left to commit it.
    barrier.open().await;
    until_disconnected(&app.db).await;
    assert_eq!(booked(&app.db, "evt_1").await, 0);
    assert_eq!(app.db.count("outcome").await, 0);
    restart_after_leases(&mut app).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
    app.db.verify().await;
}

// Other platforms cannot tell while a statement runs: there its time-out ends it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn f41_a_killed_nodes_handler_that_never_ends_does_not_keep_its_rows() {
    let lines = format!("{QUICK}\ntimeout = \"2m\"");
    let mut app = held_booking(&lines).start().await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    let orphan = barrier.until_waited(&app.db).await;
    app.kill9();
    // PostgreSQL looks for its client now and then and ends what nobody waits for.
    until("the orphaned handler is ended", async || {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {orphan}");
        app.db.one::<i64>(&sql).await == 0
    })
    .await;
    restart_after_leases(&mut app).await;
    barrier.open().await;
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.verify().await;
}

#[tokio::test]
async fn f30_killed_between_handler_and_commit_neither_effect_nor_outcome_stays() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = booking().on(db).database_url(url).start().await;
    proxy.arm_after("-- delivery_finish:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    drop(sent.await);
    assert_eq!(
        booked(&app.db, "evt_1").await,
        0,
        "its outcome is not there"
    );
    assert_eq!(app.db.count("outcome").await, 0);
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    restart_after_leases(&mut app).await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
    app.db.verify().await;
}

#[tokio::test]
async fn f29_killed_after_the_commit_before_the_next_claim_loses_nothing() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let lines = format!("{QUICK}\nbatch = 1");
    // With one connection, nothing is claimed while a handler runs.
    let mut app = held_booking(&lines)
        .env("ONCEHOOK_DISPATCH__CONNECTIONS", "1")
        .on(db)
        .database_url(url)
        .start()
        .await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&app.db).await;
    put(&app, &paid("evt_2")).await;
    proxy.arm("-- delivery_claim:", Action::FreezeBefore);
    barrier.open().await;
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    assert_eq!(booked(&app.db, "evt_1").await, 1);
    assert_eq!(app.db.count("delivery WHERE state = 'ready'").await, 1);
    app.restart().await;
    for key in ["evt_1", "evt_2"] {
        let outcome = until_booked_once(&app, &app.db, key).await;
        assert_eq!(outcome["attempts"], 1, "{key}");
    }
    app.db.verify().await;
}

#[tokio::test]
async fn killed_between_the_claim_of_a_call_and_its_sending_it_is_called_once() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let receiver = Receiver::start().await;
    let mut app = calling(&receiver, "/", "")
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm("-- event_payloads:", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    drop(sent.await);
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    assert!(receiver.requests().is_empty());
    restart_after_leases(&mut app).await;
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
    let requests = receiver.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        effect_keys(&requests),
        [outcome["effect_key"].as_str().unwrap()]
    );
    app.db.verify().await;
}

#[tokio::test]
async fn killed_while_a_call_is_out_it_is_made_again_under_the_same_effect_key() {
    let receiver = Receiver::start().await;
    let never = Gate::closed();
    receiver.reply(Reply::status(200).behind(&never));
    let mut app = calling(&receiver, "/", "").start().await;
    put(&app, &paid("evt_1")).await;
    receiver.until_requests(1).await;
    app.kill9();
    assert_eq!(app.db.count("outcome").await, 0);
    restart_after_leases(&mut app).await;
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&"succeeded".into(), &2.into())
    );
    let requests = receiver.requests();
    assert_eq!(requests.len(), 2);
    // By it the receiver, which applied the first, knows the second for a copy.
    assert_eq!(
        effect_keys(&requests),
        [outcome["effect_key"].as_str().unwrap()],
        "both calls bear one key"
    );
    app.db.verify().await;
}
