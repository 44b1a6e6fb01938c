//! Leases: who holds one, who lost one, and what a late holder can still do (nothing).

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Action, Gate, Node, PgProxy, Receiver, Reply, TestApp, TestDb, until};

use super::{
    Barrier, QUICK, Sender, begin_handling, booked, booking, end_leases, held_booking, ledger,
    metric, paid, proxied, put, storing_ledger, timeline, until_booked_once, until_metric,
    verdicts,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// A lease that is waited for; long enough for a busy machine to begin within it.
const SHORT: &str = "lease = \"3s\"";
const LOST: &str = "oncehook_leases_lost_total";

/// A node with the app's configuration that reaches the database without the proxy.
async fn direct_node(app: &mut TestApp, proxied_url: &str) -> Node {
    let toml = app.toml().replace(proxied_url, &app.db.url);
    app.another_node_with(&toml).await
}

/// Waits until some reaper has taken a lease made up for the purpose, which proves that it has
/// looked at every other lease that was over before.
async fn until_reaped(db: &TestDb) {
    let id: uuid::Uuid = db
        .one(
            "INSERT INTO oncehook.delivery (event_id, handler_id, state, lease_token, leased_at, lease_until)
             SELECT oncehook.uuid7(now()), id, 'leased', gen_random_uuid(), now() - interval '1 min', now() - interval '1 s'
               FROM oncehook.handler WHERE name = 'ledger' RETURNING event_id",
        )
        .await;
    until("a reaper takes what is over", async || {
        db.count(&format!(
            "attempt WHERE verdict = 'lost' AND event_id = '{id}'"
        ))
        .await
            == 1
    })
    .await;
}

#[tokio::test]
async fn f40_a_redelivery_while_the_handler_still_runs_is_answered_at_once() {
    let app = held_booking(QUICK).start().await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&app.db).await;
    let start = Instant::now();
    assert!(put(&app, &paid("evt_1")).await);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    barrier.open().await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 1);
    assert_eq!(timeline(&app, "evt_1").await["received_count"], 2);
    app.db.verify().await;
}

#[tokio::test]
async fn f42_a_handler_longer_than_its_lease_is_not_given_to_a_second_worker() {
    let mut app = held_booking(SHORT).start().await;
    let barrier = Barrier::closed(&app.db).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&app.db).await;
    let second = app.another_node().await;
    let over = "delivery WHERE lease_until < now()";
    until("the lease is over", async || app.db.count(over).await == 1).await;
    for _ in 0..2 {
        until_reaped(&app.db).await;
    }
    assert_eq!(app.db.count(over).await, 1, "it is still the first one's");
    barrier.open().await;
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 1);
    assert!(verdicts(&app, "evt_1").await.is_empty());
    drop(second);
}

#[tokio::test]
async fn f43_a_worker_stopped_past_its_lease_changes_nothing_when_it_wakes_up() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = booking().on(db).database_url(&url).start().await;
    // Stopped between the claim and the transaction that would lock the row.
    proxy.arm("-- delivery_lock:", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    app.sigstop();
    let second = direct_node(&mut app, &url).await;
    end_leases(&app.db).await;
    let outcome = until_booked_once(&second, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);

    app.sigcont();
    proxy.thaw();
    until_metric(&app, LOST, |lost| lost >= 1.0).await;
    assert_eq!(until_booked_once(&app, &app.db, "evt_1").await, outcome);
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
    drop(sent.await);
    // It works on as if nothing had been.
    put(&app, &paid("evt_2")).await;
    until_booked_once(&app, &app.db, "evt_2").await;
    app.db.verify().await;
}

#[tokio::test]
async fn f43_a_worker_that_wakes_up_does_not_take_its_successors_lease_for_its_own() {
    let (db, first_proxy) = proxied().await;
    let second_proxy = PgProxy::start(&db.url).await;
    let urls = [first_proxy.url(&db.name), second_proxy.url(&db.name)];
    let mut app = booking().on(db).database_url(&urls[0]).start().await;
    first_proxy.arm("-- delivery_lock:", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    first_proxy.until_fired(1).await;
    app.sigstop();
    // Its successor holds the lease now, but not yet the row's lock.
    second_proxy.arm("-- delivery_lock:", Action::FreezeBefore);
    let toml = app.toml().replace(&urls[0], &urls[1]);
    let second = app.another_node_with(&toml).await;
    end_leases(&app.db).await;
    second_proxy.until_fired(1).await;

    app.sigcont();
    first_proxy.thaw();
    until("the one that woke up has tried to settle", async || {
        metric(&app, LOST).await.unwrap_or(0.0) >= 1.0 || booked(&app.db, "evt_1").await > 0
    })
    .await;
    assert_eq!(booked(&app.db, "evt_1").await, 0, "its lease was another's");
    assert_eq!(app.db.count("delivery WHERE state = 'leased'").await, 1);
    second_proxy.thaw();
    let outcome = until_booked_once(&second, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&second, "evt_1").await, ["lost"]);
    drop(sent.await);
    app.db.verify().await;
}

#[tokio::test]
async fn f43_an_answer_that_comes_after_the_lease_is_kept_as_evidence_only() {
    let receiver = Receiver::start().await;
    let late = Gate::closed();
    receiver.reply(Reply::status(400).behind(&late));
    let due = Gate::closed();
    receiver.reply(Reply::status(200).behind(&due));
    let lines = format!(
        "secrets = [{{ label = \"a\", value = \"{SECRET}\" }}]\non_unknown = \"retry\"\ntimeout = \"30s\"\nlease = \"35s\""
    );
    let mut app = ledger()
        .http_handler("ledger", &receiver.url("/"), &lines)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    receiver.until_requests(1).await;
    app.sigstop();
    let second = app.another_node().await;
    end_leases(&app.db).await;
    receiver.until_requests(2).await;
    // The first answer arrives, a permanent "no" even, and its caller wakes up while the second
    // call is still out.
    late.open();
    app.sigcont();
    until("the evidence is kept", async || {
        verdicts(&second, "evt_1").await == ["lost", "evidence"]
    })
    .await;
    assert_eq!(app.db.count("outcome").await, 0);
    due.open();
    let outcome = second.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    let all = timeline(&second, "evt_1").await;
    assert_eq!(all["outcomes"].as_array().unwrap(), &[outcome]);
    assert_eq!(all["deliveries"].as_array().unwrap().len(), 0);
    let keys: Vec<_> = receiver
        .requests()
        .iter()
        .map(|r| r.header("Idempotency-Key").unwrap().to_owned())
        .collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(
        keys[0], keys[1],
        "the receiver can tell that it is one effect"
    );
    app.db.verify().await;
}

/// As after the promotion of an asynchronous standby that had not heard of the lease: both calls are
/// the first try.
#[tokio::test]
async fn an_answer_is_evidence_though_another_try_of_the_same_number_was_settled() {
    let receiver = Receiver::start().await;
    let late = Gate::closed();
    receiver.reply(Reply::status(400).behind(&late));
    let lines = format!(
        "secrets = [{{ label = \"a\", value = \"{SECRET}\" }}]\non_unknown = \"retry\"\ntimeout = \"30s\"\nlease = \"35s\""
    );
    let mut app = ledger()
        .http_handler("ledger", &receiver.url("/"), &lines)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    receiver.until_requests(1).await;
    app.sigstop();
    app.db
        .execute("UPDATE oncehook.delivery SET state = 'ready', lease_token = NULL, leased_at = NULL, lease_until = NULL")
        .await;
    let second = app.another_node().await;
    let outcome = second.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("succeeded"), &json!(1))
    );
    assert_eq!(verdicts(&second, "evt_1").await, [""; 0]);
    late.open();
    app.sigcont();
    until("the evidence is kept", async || {
        verdicts(&second, "evt_1").await == ["evidence"]
    })
    .await;
    let all = timeline(&second, "evt_1").await;
    assert_eq!(all["outcomes"].as_array().unwrap(), &[outcome]);
    app.db.verify().await;
}

#[tokio::test]
async fn f44_a_reaper_passes_over_what_is_being_settled() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = ledger()
        .sql_handler("ledger", "app.book", SHORT)
        .on(db)
        .database_url(&url)
        .start()
        .await;
    proxy.arm_after("-- delivery_finish:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    let second = direct_node(&mut app, &url).await;
    until("the lease is over", async || {
        app.db.count("delivery WHERE lease_until < now()").await == 1
    })
    .await;
    until_reaped(&app.db).await;
    until("the reaper counts it", async || {
        metric(&second, LOST).await == Some(1.0)
    })
    .await;
    proxy.thaw();
    let outcome = until_booked_once(&app, &app.db, "evt_1").await;
    assert_eq!(outcome["attempts"], 1);
    assert!(verdicts(&app, "evt_1").await.is_empty());
    assert_eq!(
        metric(&second, LOST).await,
        Some(1.0),
        "the one made by hand"
    );
    drop(sent.await);
}

#[tokio::test]
async fn f44_work_completed_between_the_reapers_choice_and_its_write_stays_completed() {
    let receiver = Receiver::start().await;
    let answer = Gate::closed();
    receiver.reply(Reply::status(200).behind(&answer));
    let lines = format!(
        "secrets = [{{ label = \"a\", value = \"{SECRET}\" }}]\non_unknown = \"retry\"\ntimeout = \"30s\"\nlease = \"35s\""
    );
    let app = ledger()
        .http_handler("ledger", &receiver.url("/"), &lines)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    receiver.until_requests(1).await;
    // Nobody can write the history, so the reaper chooses, then waits and gives up.
    let mut blocker = app.db.client().await;
    let hold = blocker.transaction().await.unwrap();
    hold.batch_execute("LOCK TABLE oncehook.attempt IN SHARE MODE")
        .await
        .unwrap();
    end_leases(&app.db).await;
    app.until_logged("reaper failed").await;
    answer.open();
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&"succeeded".into(), &1.into())
    );
    hold.rollback().await.unwrap();
    assert!(verdicts(&app, "evt_1").await.is_empty());
    assert_eq!(metric(&app, LOST).await, Some(0.0), "no lease was lost");
    assert_eq!(receiver.requests().len(), 1);
    app.db.verify().await;
}

#[tokio::test]
async fn f45_a_node_leaves_deliveries_of_handlers_it_does_not_know_alone() {
    let mut app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .sql_handler("other", "app.book", QUICK)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    put(&app, &paid("evt_2")).await;
    app.kill9();
    // One of the unknown ones is leased, and its lease is over.
    app.db
        .execute(
            "UPDATE oncehook.delivery SET state = 'leased', lease_token = gen_random_uuid(), leased_at = now(), lease_until = now()
              WHERE (event_id, handler_id) IN (SELECT e.id, h.id FROM oncehook.event e, oncehook.handler h WHERE e.key = 'evt_2' AND h.name = 'other')",
        )
        .await;
    let whole = app.toml().replace("enabled = false", "enabled = true");
    let (without, _) = whole.split_once("[[handler]]\nname = \"other\"").unwrap();
    let second = app.another_node_with(without).await;
    until_metric(&second, "oncehook_deliveries_unknown_handler", |n| n > 0.0).await;
    second
        .until_logged("handlers that this node does not know")
        .await;
    for key in ["evt_1", "evt_2"] {
        second.until_outcome("stripe", key, "ledger").await;
    }
    until_reaped(&app.db).await;
    let untouched = "SELECT state FROM oncehook.delivery d JOIN oncehook.handler h ON h.id = d.handler_id WHERE h.name = 'other' ORDER BY state";
    assert_eq!(
        app.db.all::<String>(untouched).await,
        ["leased", "ready"],
        "what another node must judge is left alone"
    );
    for key in ["evt_1", "evt_2"] {
        assert_eq!(timeline(&second, key).await["state"], "pending");
    }
    // The one who knows comes back.
    begin_handling(&mut app).await;
    for key in ["evt_1", "evt_2"] {
        let outcome = app.until_outcome("stripe", key, "other").await;
        assert_eq!(outcome["result"], "succeeded");
    }
    until("nothing is left", async || {
        app.db.count("delivery").await == 0
    })
    .await;
    assert_eq!(booked(&app.db, "evt_2").await, 2, "once for each handler");
}
