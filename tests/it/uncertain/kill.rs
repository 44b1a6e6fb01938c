//! SIGKILL with calls in every state: what must not be repeated is not.

use serde_json::json;

use crate::crash::{
    Sender, end_leases, kill_before, metric, paid, proxied, put, restart_after_leases, until_metric,
};
use crate::support::{Action, Gate, Reply, oncehook, until};

use super::{Applies, Manner, Payments, due, history, land, until_for_people, until_uncertain};

#[tokio::test]
async fn killed_between_the_claim_of_a_call_and_its_sending_it_is_sent_when_it_is_known_absent() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let payments = Payments::start().await;
    let mut app = payments
        .probed("\"100ms\", \"1h\"", "lease = \"2m\"")
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm("-- event_payloads:", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    drop(sent.await);
    assert!(payments.calls().is_empty());
    restart_after_leases(&mut app).await;
    // Nobody knows that it was not sent: it is asked about, and waits until it cannot be under way.
    until_uncertain(&app, "evt_1").await;
    payments.until_probes(1).await;
    until("the answer is written", async || {
        history(&app, "evt_1").await.len() == 2
    })
    .await;
    assert!(payments.calls().is_empty());
    land(&app.db).await;
    due(&app.db).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("succeeded"), &json!(2))
    );
    assert_eq!(payments.calls(), [outcome["effect_key"].as_str().unwrap()]);
    app.db.verify().await;
}

#[tokio::test]
async fn killed_while_a_call_is_out_its_effect_is_found_and_not_repeated() {
    let payments = Payments::start().await;
    payments.next([Manner::Holds(Gate::closed(), Applies::Yes)]);
    let mut app = payments.probed("\"100ms\"", "").start().await;
    put(&app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    app.kill9();
    restart_after_leases(&mut app).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (
            &outcome["result"],
            &outcome["decided_by"],
            &outcome["attempts"]
        ),
        (&json!("succeeded"), &json!("probe"), &json!(1))
    );
    assert_eq!((payments.calls().len(), payments.applied()), (1, vec![1]));
    let probed = payments.probes();
    assert_eq!(
        probed[0].header("Idempotency-Key"),
        outcome["effect_key"].as_str()
    );
    app.db.verify().await;
}

#[tokio::test]
async fn killed_between_the_answer_and_its_settling_the_effect_is_found_and_not_repeated() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let payments = Payments::start().await;
    let mut app = payments
        .probed("\"100ms\"", "")
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm("-- delivery_finish:", Action::FreezeBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    assert_eq!(payments.applied(), [1]);
    kill_before(&mut app, &proxy).await;
    restart_after_leases(&mut app).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("probe"))
    );
    assert_eq!((payments.calls().len(), payments.applied()), (1, vec![1]));
    app.db.verify().await;
}

#[tokio::test]
async fn one_kill_leaves_no_more_uncertain_than_calls_were_out() {
    let payments = Payments::start().await;
    let never = Gate::closed();
    payments.next(vec![Manner::Holds(never, Applies::Yes); 4]);
    let mut app = payments
        .app("on_unknown = \"hold\"\nconcurrency = 4")
        .start()
        .await;
    for n in 0..12 {
        put(&app, &paid(&format!("evt_{n}"))).await;
    }
    payments.until_calls(4).await;
    app.kill9();
    assert_eq!(
        app.db
            .count("delivery WHERE state = 'leased' AND in_flight_until > now()")
            .await,
        4
    );
    assert_eq!(
        app.db
            .count("delivery WHERE state = 'ready' AND in_flight_until IS NULL")
            .await,
        8
    );
    restart_after_leases(&mut app).await;
    until("the others are done", async || {
        app.db.count("outcome").await == 8
    })
    .await;
    until("the lost ones are uncertain", async || {
        app.db
            .count("delivery WHERE state = 'uncertain' AND suspect")
            .await
            == 4
    })
    .await;
    assert_eq!(app.db.count("delivery").await, 4);
    assert_eq!(
        (payments.calls().len(), payments.applied()),
        (12, vec![1; 12])
    );
    app.db.verify().await;
}

#[tokio::test]
async fn poison_is_not_dead_while_its_call_may_have_been_made() {
    let payments = Payments::start().await;
    payments.next(vec![Manner::Holds(Gate::closed(), Applies::No); 9]);
    let mut app = payments
        .probed("\"1h\", \"2h\"", "crashes = 1")
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    // The first loss is one among others, the second one alone: poison, were it no call.
    for n in 1..=2 {
        payments.until_calls(n).await;
        app.kill9();
        restart_after_leases(&mut app).await;
        until_uncertain(&app, "evt_1").await;
        land(&app.db).await;
        due(&app.db).await;
    }
    // Known to be absent, it is dead and not sent a third time.
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (
            &outcome["result"],
            &outcome["decided_by"],
            &outcome["attempts"]
        ),
        (&json!("dead"), &json!("probe"), &json!(2))
    );
    assert_eq!(payments.calls().len(), 2);
    app.db.verify().await;
}

#[tokio::test]
async fn a_dead_letter_that_is_replayed_after_lost_answers_keeps_its_effect_key() {
    let payments = Payments::start().await;
    payments.next([Manner::Holds(Gate::closed(), Applies::No)]);
    let mut app = payments.app("on_unknown = \"hold\"").start().await;
    put(&app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    app.kill9();
    restart_after_leases(&mut app).await;
    let uncertain = until_for_people(&app, "evt_1").await;
    for (verb, decision) in [("resolve", &["--as", "dead"][..]), ("replay", &[])] {
        let mut args = vec![
            verb,
            "stripe",
            "evt_1",
            "--handler",
            "payout",
            "--reason",
            "x",
        ];
        args.extend(decision);
        if verb == "replay" {
            land(&app.db).await;
        }
        let ran = oncehook(&app.config(), &args, &[]).await;
        assert_eq!(ran.code, Some(0), "{}", ran.said());
    }
    until("the replay has ended", async || {
        app.db.count("outcome").await == 2
    })
    .await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["run"], &outcome["effect_key"]),
        (&json!("succeeded"), &json!(2), &uncertain["effect_key"])
    );
    assert_eq!(
        payments.calls(),
        [outcome["effect_key"].as_str().unwrap(); 2]
    );
    app.db.verify().await;
}

#[tokio::test]
async fn a_claim_that_is_given_back_has_no_call_under_way() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let payments = Payments::start().await;
    let app = payments
        .app("on_unknown = \"hold\"")
        .on(db)
        .database_url(url)
        .start()
        .await;
    proxy.arm("-- event_payloads:", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    assert_eq!(
        app.db.count("delivery WHERE in_flight_until > now()").await,
        1
    );
    // Held for longer than a call may wait for its start, it goes back and is claimed anew.
    let held = std::time::Instant::now();
    until("three seconds have passed", async || {
        held.elapsed().as_millis() > 3_100
    })
    .await;
    proxy.arm("-- delivery_claim:", Action::FreezeBefore);
    proxy.thaw();
    until("it was given back", async || {
        app.db
            .count("delivery WHERE state = 'ready' AND in_flight_until IS NULL")
            .await
            == 1
    })
    .await;
    assert!(payments.calls().is_empty());
    proxy.until_fired(2).await;
    proxy.thaw();
    drop(sent.await);
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("succeeded"), &json!(1))
    );
    assert_eq!(payments.applied(), [1]);
    app.db.verify().await;
}

#[tokio::test]
async fn what_the_reaper_decides_is_counted_when_it_is_committed() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let payments = Payments::start().await;
    payments.next([Manner::Holds(Gate::closed(), Applies::Yes)]);
    let app = payments
        .app("on_unknown = \"hold\"\ntimeout = \"30s\"")
        .on(db)
        .database_url(url)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    payments.until_calls(1).await;
    // Twice its COMMIT never arrives: it is rolled back, and done again.
    for _ in 0..2 {
        proxy.arm_after("RELEASE SAVEPOINT", "commit", Action::CutBefore);
    }
    end_leases(&app.db).await;
    until_for_people(&app, "evt_1").await;
    assert_eq!(proxy.fired(), 2);
    for name in [
        "oncehook_calls_uncertain_total",
        "oncehook_leases_lost_total",
    ] {
        until_metric(&app, name, |n| n > 0.9).await;
        assert_eq!(metric(&app, name).await, Some(1.0), "{name}");
    }
    app.db.verify().await;
}

/// What an asynchronous failover forgets: the event, and that a call was made for it.
const FORGET: &str = "
    DELETE FROM oncehook.attempt; DELETE FROM oncehook.delivery; DELETE FROM oncehook.event;
    DELETE FROM oncehook.request; DELETE FROM oncehook.event_key";

#[tokio::test]
async fn calls_probes_and_outcome_have_one_effect_key_over_restarts_and_a_forgotten_event() {
    let payments = Payments::start().await;
    payments.next([
        Manner::Says(Reply::cut(), Applies::No),
        Manner::Holds(Gate::closed(), Applies::No),
        Manner::Says(Reply::status(500), Applies::Yes),
    ]);
    let mut app = payments.probed("\"1h\", \"2h\"", "").start().await;
    put(&app, &paid("evt_1")).await;
    let first = until_uncertain(&app, "evt_1").await;
    // Absent, sent again, lost with its node.
    land(&app.db).await;
    due(&app.db).await;
    payments.until_calls(2).await;
    app.kill9();
    restart_after_leases(&mut app).await;
    until_uncertain(&app, "evt_1").await;
    // Forgotten, sent again by the provider under the same key, and unknown once more.
    let old_id: uuid::Uuid = app.db.one("SELECT id FROM oncehook.event").await;
    app.db.execute(FORGET).await;
    put(&app, &paid("evt_1")).await;
    until_uncertain(&app, "evt_1").await;
    assert_ne!(
        app.db
            .one::<uuid::Uuid>("SELECT id FROM oncehook.event")
            .await,
        old_id
    );
    due(&app.db).await;
    let outcome = app.until_outcome("stripe", "evt_1", "payout").await;
    assert_eq!(
        (&outcome["result"], &outcome["decided_by"]),
        (&json!("succeeded"), &json!("probe"))
    );
    let key = first["effect_key"].as_str().unwrap();
    assert_eq!(outcome["effect_key"], key);
    assert_eq!(payments.calls(), [key; 3]);
    let probes = payments.probes();
    assert_eq!(probes.len(), 2);
    assert!(
        probes
            .iter()
            .all(|probe| probe.header("Idempotency-Key") == Some(key))
    );
    app.db.verify().await;
}
