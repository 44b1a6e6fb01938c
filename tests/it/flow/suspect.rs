//! A suspect runs alone; one that cannot run now must not keep the others from it.

use std::time::Duration;

use oncehook::store::flow::Pausable;

use crate::crash::{
    QUICK, begin_handling, ledger, metric, paid, proxied, put, until_booked_once, until_metric,
};
use crate::dispatch::LEDGER;
use crate::support::node::free_address;
use crate::support::{Action, AppBuilder, Gate, Node, Receiver, Reply, TestApp, TestDb, until};

use super::{pause, put_many, resume, until_known};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Source `other` goes to the handler `calls`, whose first call lasts until the gate is opened.
async fn with_calls(app: AppBuilder) -> (TestApp, Receiver, Gate) {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.reply(Reply::status(200).behind(&gate));
    let lines = format!(
        "secrets = [{{ label = \"a\", value = {SECRET:?} }}]\non_unknown = \"retry\"\nevents = [\"other:*\"]\ntimeout = \"2m\""
    );
    let app = app
        .stripe("other")
        .stripe("quiet")
        .http_handler("calls", &receiver.url("/"), &lines);
    (app.start().await, receiver, gate)
}

/// What comes of source `stripe` goes to the handler `ledger`.
fn booking(lines: &str) -> AppBuilder {
    let lines = format!("{QUICK}\nevents = [\"stripe:*\"]\n{lines}");
    ledger().sql_handler("ledger", "app.book", &lines)
}

/// One delivery of `ledger`, which is paused, has lost a lease.
async fn suspect(app: &TestApp) {
    pause(&app.db, Pausable::Handler, "ledger").await;
    until_known(app, "oncehook_handler_paused", true).await;
    put(app, &paid("evt_suspect")).await;
    app.db
        .execute("UPDATE oncehook.delivery SET suspect = true")
        .await;
}

/// The node has polled, and looked for suspects, more than once: what nobody tells it is found so.
async fn until_polled(app: &Node, db: &TestDb) {
    for (set, paused) in [
        ("now(), paused_by = 'eva'", true),
        ("NULL, paused_by = NULL", false),
    ] {
        db.execute(&format!(
            "UPDATE oncehook.source SET paused_at = {set} WHERE name = 'quiet'"
        ))
        .await;
        until_known(app, "oncehook_source_paused", paused).await;
    }
}

/// While a call is out, others are begun.
async fn others_go_on(app: &Node, db: &TestDb, receiver: &Receiver) {
    put_many(app, "other", "evt_first", 1).await;
    receiver.until_requests(1).await;
    until_polled(app, db).await;
    for n in 0..3 {
        put_many(app, "other", &format!("evt_{n}"), 1).await;
        receiver.until_requests(2 + n).await;
    }
}

#[tokio::test]
async fn a_suspect_of_a_paused_handler_holds_nobody_up_and_runs_when_it_is_resumed() {
    let (app, receiver, gate) = with_calls(booking("")).await;
    suspect(&app).await;
    others_go_on(&app, &app.db, &receiver).await;
    resume(&app.db, Pausable::Handler, "ledger").await;
    // Now it waits for the call that is out, and runs behind it.
    gate.open();
    until_booked_once(&app, &app.db, "evt_suspect").await;
    app.db.verify().await;
}

#[tokio::test]
async fn a_suspect_of_a_paused_source_is_set_aside_and_holds_nobody_up() {
    let (app, receiver, gate) = with_calls(booking("")).await;
    suspect(&app).await;
    pause(&app.db, Pausable::Source, "stripe").await;
    until_known(&app, "oncehook_source_paused", true).await;
    put_many(&app, "other", "evt_first", 1).await;
    receiver.until_requests(1).await;
    // The call is out: nobody claims the suspect to find out whose it is.
    resume(&app.db, Pausable::Handler, "ledger").await;
    until("the suspect is set aside", async || {
        let aside = "delivery WHERE paused_source IS NOT NULL AND first_try_at IS NULL";
        app.db.count(aside).await == 1
    })
    .await;
    put_many(&app, "other", "evt", 3).await;
    receiver.until_requests(4).await;
    resume(&app.db, Pausable::Source, "stripe").await;
    gate.open();
    until_booked_once(&app, &app.db, "evt_suspect").await;
    app.db.verify().await;
}

#[tokio::test]
async fn a_suspect_beyond_its_handlers_cap_holds_nobody_up() {
    let (app, receiver, gate) = with_calls(booking("max_in_flight = 1")).await;
    suspect(&app).await;
    // Another node has as much under way as may be.
    put(&app, &paid("evt_elsewhere")).await;
    app.db
        .execute(
            "UPDATE oncehook.delivery SET state = 'leased', lease_token = gen_random_uuid(), leased_at = now(), lease_until = now() + interval '1 h'
              WHERE NOT suspect",
        )
        .await;
    resume(&app.db, Pausable::Handler, "ledger").await;
    until_known(&app, "oncehook_handler_paused", false).await;
    others_go_on(&app, &app.db, &receiver).await;
    gate.open();
    app.db
        .execute("DELETE FROM oncehook.delivery WHERE state = 'leased'")
        .await;
    until_booked_once(&app, &app.db, "evt_suspect").await;
}

#[tokio::test]
async fn a_suspect_behind_an_open_breaker_holds_nobody_up() {
    let down = format!("http://{}/", free_address());
    let lines = format!(
        "secrets = [{{ label = \"a\", value = {SECRET:?} }}]\non_unknown = \"retry\"\nevents = [\"stripe:*\"]\n{QUICK}\n\
         breaker = {{ failures = 50, minimum = 2, first = \"1m\", max = \"1m\" }}"
    );
    let (app, receiver, _gate) = with_calls(ledger().http_handler("down", &down, &lines)).await;
    put_many(&app, "stripe", "evt_down", 3).await;
    until_metric(&app, "oncehook_breaker_opened_total", |n| n >= 1.0).await;
    until("its deliveries wait", async || {
        let waiting = "delivery WHERE state = 'ready' AND run_at <= now()";
        app.db.count(waiting).await == 3
    })
    .await;
    app.db
        .execute("UPDATE oncehook.delivery SET suspect = true")
        .await;
    others_go_on(&app, &app.db, &receiver).await;
    assert_eq!(metric(&app, "oncehook_breaker_state").await, Some(2.0));
}

/// While it waits for a token of its handler's rate, a pause is ordered: that is not a poll late.
#[tokio::test]
async fn a_suspect_that_waits_for_a_token_is_not_claimed_once_its_handler_is_paused() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = TestApp::builder()
        .stripe("stripe")
        .setup(LEDGER)
        .toml("[dispatch]\npoll = \"10s\"\nenabled = false")
        .sql_handler("ledger", "app.book", &format!("{QUICK}\nrate = \"30/min\""))
        .on(db)
        .database_url(url)
        .start()
        .await;
    put(&app, &paid("evt_suspect")).await;
    app.db
        .execute(
            "UPDATE oncehook.delivery SET suspect = true;
             UPDATE oncehook.handler_cap SET tokens = -1, refilled_at = clock_timestamp()",
        )
        .await;
    proxy.arm_after("-- cap_standing:", "COMMIT", Action::Delay(Duration::ZERO));
    begin_handling(&mut app).await;
    proxy.until_fired(1).await;
    // It has found no token, and waits for the next one.
    proxy.arm("-- delivery_claim_suspect:", Action::Delay(Duration::ZERO));
    pause(&app.db, Pausable::Handler, "ledger").await;
    proxy.until_fired(2).await;
    let open = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL";
    until("the claim has ended", async || {
        app.db.one::<i64>(open).await == 0
    })
    .await;
    let untouched = "delivery WHERE state = 'ready' AND first_try_at IS NULL";
    assert_eq!(app.db.count(untouched).await, 1, "claimed behind the pause");
    assert_eq!(app.db.count("app.ledger").await, 0);
    resume(&app.db, Pausable::Handler, "ledger").await;
    app.restart().await;
    until_booked_once(&app, &app.db, "evt_suspect").await;
    app.db.verify().await;
}
