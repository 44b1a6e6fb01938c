//! `max_in_flight` and `rate`, as the receiver sees them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::crash::http::calling;
use crate::crash::{
    BOOK_BEHIND_BARRIER, Barrier, QUICK, begin_handling, booking, end_leases, metric, paid, put,
    storing_ledger, until_booked_once, until_metric,
};
use crate::support::node::free_address;
use crate::support::{Gate, Receiver, Reply, TestDb, backend_pid, until};

use super::put_many;

#[tokio::test]
async fn two_nodes_together_never_have_more_calls_out_than_the_cap() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let open = Gate::closed();
    let seen = (Arc::clone(&now), Arc::clone(&most), open.clone());
    let receiver = Receiver::answering(free_address(), move |_| {
        let (now, most, open) = seen.clone();
        Box::pin(async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            open.passed().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Reply::status(200)
        })
    })
    .await;
    let mut app = calling(&receiver, "/", "max_in_flight = 3").start().await;
    let other = app.another_node().await;
    put_many(&app, "stripe", "evt", 40).await;
    put_many(&other, "stripe", "evt_other", 40).await;
    until("three are out", async || now.load(Ordering::SeqCst) == 3).await;
    for node in [&*app, &other] {
        until_metric(node, "oncehook_claims_capped_total", |n| n > 1.0).await;
    }
    open.open();
    until("all are done", async || app.db.count("outcome").await == 80).await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    app.db.verify().await;
}

#[tokio::test]
async fn two_nodes_together_never_call_more_often_than_the_rate() {
    let receiver = Receiver::start().await;
    let mut app = calling(&receiver, "/", "rate = \"30/s\"").start().await;
    let other = app.another_node().await;
    // The first call may go at once, each further one a thirtieth of a second later.
    let began = Instant::now();
    put_many(&app, "stripe", "evt", 30).await;
    put_many(&other, "stripe", "evt_other", 30).await;
    until("all are done", async || app.db.count("outcome").await == 60).await;
    let mut at: Vec<Duration> = receiver.requests().iter().map(|r| r.at - began).collect();
    at.sort_unstable();
    assert_eq!(at.len(), 60);
    for (n, at) in at.iter().enumerate() {
        let earliest = Duration::from_secs_f64(f64::from(u32::try_from(n).unwrap()) / 30.0);
        assert!(
            *at >= earliest,
            "call {n} came after {at:?}, before {earliest:?}"
        );
    }
    app.db.verify().await;
}

#[tokio::test]
async fn a_cap_holds_for_the_deliveries_of_a_sql_handler_too() {
    let lines = format!("{QUICK}\nmax_in_flight = 4\nbatch = 50");
    let mut app = storing_ledger()
        .setup(BOOK_BEHIND_BARRIER)
        .sql_handler("ledger", "app.book_behind_barrier", &lines)
        .start()
        .await;
    put_many(&app, "stripe", "evt", 20).await;
    let barrier = Barrier::closed(&app.db).await;
    begin_handling(&mut app).await;
    barrier.until_waited(&app.db).await;
    until("as many as may are leased", async || {
        app.db.count("delivery WHERE state = 'leased'").await == 4
    })
    .await;
    barrier.open().await;
    until("all are done", async || app.db.count("outcome").await == 20).await;
    assert_eq!(app.db.count("app.ledger").await, 20);
}

#[tokio::test]
async fn a_node_that_is_killed_with_the_cap_used_up_does_not_block_it() {
    let receiver = Receiver::start().await;
    let never = Gate::closed();
    receiver.reply(Reply::status(200).behind(&never));
    let mut app = calling(&receiver, "/", "max_in_flight = 1").start().await;
    put(&app, &paid("evt_1")).await;
    receiver.until_requests(1).await;
    let other = app.another_node().await;
    put(&other, &paid("evt_2")).await;
    app.kill9();
    // Its call may be out: until its lease has ended, nothing else is.
    until_metric(&other, "oncehook_claims_capped_total", |n| n > 0.0).await;
    assert_eq!(receiver.requests().len(), 1);
    end_leases(&app.db).await;
    for key in ["evt_1", "evt_2"] {
        let outcome = other.until_outcome("stripe", key, "ledger").await;
        assert_eq!(outcome["result"], "succeeded");
    }
    app.db.verify().await;
}

#[tokio::test]
async fn a_claim_that_dies_with_the_caps_row_locked_frees_it() {
    let app = booking_capped().await;
    let dying = app.db.client().await;
    dying
        .batch_execute("BEGIN; SELECT FROM oncehook.handler_cap FOR UPDATE")
        .await
        .unwrap();
    let pid = backend_pid(&dying).await;
    put(&app, &paid("evt_1")).await;
    // Whoever comes meanwhile passes by and does not wait.
    let mut looks = HashSet::new();
    until("the node has looked more than once", async || {
        let sql = "SELECT query_start::text FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%cap_lock: %' AND pid <> pg_backend_pid()";
        looks.extend(app.db.all::<String>(sql).await);
        looks.len() >= 5
    })
    .await;
    assert_eq!(app.db.count("outcome").await, 0);
    app.db
        .execute_outside(&format!("SELECT pg_terminate_backend({pid})"))
        .await;
    until_booked_once(&app, &app.db, "evt_1").await;
}

async fn booking_capped() -> crate::support::TestApp {
    let lines = format!("{QUICK}\nmax_in_flight = 2");
    crate::crash::ledger()
        .sql_handler("ledger", "app.book", &lines)
        .start()
        .await
}

#[tokio::test]
async fn handlers_without_a_cap_never_touch_its_table() {
    let app = booking().start().await;
    put_many(&app, "stripe", "evt", 5).await;
    until("all are done", async || app.db.count("outcome").await == 5).await;
    let tokens: Vec<f64> = app.db.all("SELECT tokens FROM oncehook.handler_cap").await;
    assert_eq!(tokens, [0.0]);
    let changed = "SELECT coalesce(n_tup_upd, 0) FROM pg_stat_user_tables WHERE relid = 'oncehook.handler_cap'::regclass";
    assert_eq!(app.db.one::<i64>(changed).await, 0);
}

/// Tokens that are there now, of a rate that holds so many and gains so many a second.
async fn tokens(db: &TestDb, depth: f64, refill: f64) -> f64 {
    db.one(&format!(
        "SELECT least({depth}::float8, tokens + {refill} * extract(epoch FROM clock_timestamp() - refilled_at)::float8)
           FROM oncehook.handler_cap"
    ))
    .await
}

#[tokio::test]
async fn repetitions_that_are_put_off_leave_the_rate_to_the_calls_that_are_made() {
    let receiver = Receiver::start().await;
    receiver.always(Reply::status(503));
    // 200 at once, and about one a second.
    let lines = "rate = \"4000/h\"\nbreaker = false";
    let app = calling(&receiver, "/", lines).start().await;
    put_many(&app, "stripe", "evt", 30).await;
    // Thirty first tries and a minute's sixty repetitions; what comes due beyond them is put off, again and again.
    until("a hundred and fifty were put off", async || {
        app.db
            .execute("UPDATE oncehook.delivery SET run_at = now() WHERE state = 'ready'")
            .await;
        let deferred = metric(&app, "oncehook_retries_deferred_total").await;
        deferred.is_some_and(|n| n >= 150.0)
    })
    .await;
    receiver.always(Reply::status(200));
    put_many(&app, "stripe", "evt_new", 20).await;
    until("the new ones are called", async || {
        let new =
            "outcome o JOIN oncehook.event e ON e.id = o.event_id WHERE e.key LIKE 'evt_new%'";
        app.db.count(new).await == 20
    })
    .await;
    let calls = u32::try_from(receiver.requests().len()).unwrap();
    // More, if it took longer than the minute that the budget looks back upon.
    assert!(calls >= 110, "{calls}");
    let left = tokens(&app.db, 200.0, 1.05).await;
    assert!(
        left >= 200.0 - f64::from(calls),
        "{left} after {calls} calls"
    );
    app.db.verify().await;
}

#[tokio::test]
async fn what_is_skipped_for_its_age_takes_nothing_of_the_rate() {
    let receiver = Receiver::start().await;
    // Two at once, and one in a minute and a half.
    let lines = "rate = \"40/h\"\nlane = \"entity\"\napply_if_newer = \"occurred_at\"";
    let app = calling(&receiver, "/", lines)
        .setup(STATES)
        .sql_handler("states", "app.keep", lines)
        .start()
        .await;
    let happened = |key: &str, at_s: i64| {
        let mut event = paid(key);
        event["created"] = (1_760_000_000 + at_s).into();
        event
    };
    // Without the token that comes back with the one that is skipped, the last would wait for a minute and a half.
    let events = [
        ("evt_2", 2, "succeeded"),
        ("evt_1", 1, "skipped"),
        ("evt_3", 3, "succeeded"),
    ];
    for (key, at_s, result) in events {
        put(&app, &happened(key, at_s)).await;
        for handler in ["ledger", "states"] {
            let outcome = app.until_outcome("stripe", key, handler).await;
            assert_eq!(outcome["result"], result, "{handler}: {outcome}");
        }
    }
    assert_eq!(receiver.requests().len(), 2);
    let left: Vec<f64> = app.db.all("SELECT tokens FROM oncehook.handler_cap").await;
    assert!(left.iter().all(|left| *left < 1.0), "{left:?}");
    app.db.verify().await;
}

#[tokio::test]
async fn what_comes_to_a_rate_that_is_not_used_up_does_not_wait_for_a_token() {
    let receiver = Receiver::start().await;
    // Two at once, and one in a minute and a half.
    let app = calling(&receiver, "/", "rate = \"40/h\"").start().await;
    until("the node has looked in vain", async || {
        let looks = "SELECT coalesce(seq_scan + idx_scan, 0) FROM pg_stat_user_tables WHERE relid = 'oncehook.handler_cap'::regclass";
        app.db.one::<i64>(looks).await >= 2
    })
    .await;
    for key in ["evt_1", "evt_2"] {
        put(&app, &paid(key)).await;
        app.until_outcome("stripe", key, "ledger").await;
    }
}

/// Applies anything.
const STATES: &str = "
CREATE FUNCTION app.keep(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ SELECT $$";
