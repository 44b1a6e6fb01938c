//! A node's clock steps by an hour while leases are held and retries wait: only the database's
//! clock decides when a lease has ended and when a retry is due.

use std::time::{Duration, SystemTime};

use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};

use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{FakeClock, Gate, Node, Receiver, Reply, TestApp, TestDb, until};

use super::{BOOK_BEHIND_BARRIER, Barrier, ledger, paid};

const SECRET: &str = "no time is signed under this one";
const CALL_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Asks for another try in half an hour.
const LATER: &str = "
CREATE FUNCTION app.later(event oncehook.delivered) RETURNS jsonb LANGUAGE sql AS
$$ SELECT '{\"result\": \"retry\", \"reason\": \"not yet\", \"after_s\": 1800}'::jsonb $$";

const QUICK: &str = "retry = { for = \"1m\", first = \"20ms\", max = \"100ms\" }";

/// Sends an event whose signature holds no time.
async fn put(node: &Node, key: &str, event_type: &str) {
    let body = format!("{{\"id\":\"{key}\"}}");
    let signature = signer::github(SECRET, body.as_bytes());
    let headers = [
        ("X-Hub-Signature-256", signature.as_str()),
        ("X-GitHub-Delivery", key),
        ("X-GitHub-Event", event_type),
    ];
    let response = node.post("shop", &headers, body).await;
    assert_eq!(response.status(), 200, "{key}");
}

/// Waits until a node takes a signature of this moment for one that is an hour off.
async fn until_stepped(node: &Node) {
    until("the node's clock has stepped", async || {
        let body = paid("evt_signed").to_string();
        let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), body.as_bytes());
        let headers = [("Stripe-Signature", signature.as_str())];
        node.post("stripe", &headers, body).await.status() == 401
    })
    .await;
}

/// A node with a clock of its own. `ledger` books everything with a lease of a second, `held`
/// holds its lease behind the barrier, `later` asks for another try, `called` calls.
async fn start(clock: &FakeClock, receiver: &Receiver) -> TestApp {
    let sql =
        |event_type: &str| format!("events = [\"shop:{event_type}\"]\nlease = \"1s\"\n{QUICK}");
    let call = format!(
        "events = [\"shop:called\"]\nsecrets = [{{ label = \"a\", value = {CALL_SECRET:?} }}]\n\
         on_unknown = \"retry\"\ntimeout = \"30s\"\nlease = \"35s\"\n{QUICK}"
    );
    let mut app = ledger()
        .source("shop", "github", SECRET, "")
        .setup(BOOK_BEHIND_BARRIER)
        .setup(LATER)
        .sql_handler("ledger", "app.book", &sql("*"))
        .sql_handler("held", "app.book_behind_barrier", &sql("held"))
        .sql_handler("later", "app.later", &sql("later"))
        .http_handler("called", &receiver.url("/"), &call);
    for (name, value) in clock.env(Duration::ZERO) {
        app = app.env(&name, &value);
    }
    app.start().await
}

/// Waits until a reaper has looked at every lease that was over before: it removes one made up
/// for the purpose, of a delivery that has its outcome.
async fn until_reaped(db: &TestDb) {
    db.execute(
        "INSERT INTO oncehook.delivery (event_id, handler_id, state, lease_token, leased_at, lease_until)
         SELECT o.event_id, o.handler_id, 'leased', gen_random_uuid(), now() - interval '1 min', now() - interval '1 s'
           FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id WHERE e.key = 'evt_before'",
    )
    .await;
    until("a reaper takes what is over", async || {
        db.count("delivery d JOIN oncehook.event e ON e.id = d.event_id WHERE e.key = 'evt_before'")
            .await
            == 0
    })
    .await;
}

/// A moment as HTTP writes it.
fn http_date(at: Timestamp) -> String {
    DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&at)
        .unwrap()
}

async fn a_node_steps(offset_s: &str) {
    let Some(clock) = FakeClock::new() else {
        return;
    };
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.reply(Reply::status(200).behind(&gate));
    receiver.reply(Reply::status(200).behind(&gate));
    let mut stepped = start(&clock, &receiver).await;
    let barrier = Barrier::closed(&stepped.db).await;

    put(&stepped, "evt_before", "paid").await;
    stepped.until_outcome("shop", "evt_before", "ledger").await;
    // Before the step: a call, a transaction longer than its lease, a retry in half an hour.
    put(&stepped, "evt_called", "called").await;
    receiver.until_requests(1).await;
    put(&stepped, "evt_held", "held").await;
    barrier.until_waited(&stepped.db).await;
    put(&stepped, "evt_later", "later").await;
    let waiting =
        "delivery WHERE failures = 1 AND run_at BETWEEN now() + '1700 s' AND now() + '1800 s'";
    until("the retry waits", async || {
        stepped.db.count(waiting).await == 1
    })
    .await;
    clock.step(offset_s);
    until_stepped(&stepped).await;
    let right = stepped.another_node_in(Vec::new()).await;

    // After it: a lease begins and ends where the database says.
    put(&stepped, "evt_called_2", "called").await;
    receiver.until_requests(2).await;
    let as_long_as_meant = "delivery d JOIN oncehook.handler h ON h.id = d.handler_id AND h.name = 'called'
        WHERE lease_until - leased_at BETWEEN '34.9 s' AND '35.1 s' AND leased_at BETWEEN now() - interval '30 s' AND now()";
    assert_eq!(stepped.db.count(as_long_as_meant).await, 2);

    // Each reaper looks, alone: the one with the wrong clock and the one with the right.
    right.sigstop();
    until_reaped(&stepped.db).await;
    // The stepped node alone answers for this one, too.
    let then = Timestamp::now();
    let due = then + SignedDuration::from_secs(1_800);
    let asked = Reply::status(503)
        .header("Date", &http_date(then))
        .header("Retry-After", &http_date(due));
    receiver.reply(asked);
    put(&stepped, "evt_asked", "called").await;
    until(
        "the call that was told when to come again waits",
        async || {
            stepped
                .db
                .count("attempt WHERE error LIKE 'HTTP 503%'")
                .await
                == 1
        },
    )
    .await;
    right.sigcont();
    stepped.sigstop();
    until_reaped(&stepped.db).await;
    stepped.sigcont();

    // Nobody's lease was taken, nobody came early, nobody waits for an hour too long.
    let lost = "attempt a JOIN oncehook.event e ON e.id = a.event_id WHERE verdict = 'lost'";
    assert_eq!(stepped.db.count(lost).await, 0, "no lease was taken");
    assert_eq!(receiver.requests().len(), 3);
    let asked_for =
        "SELECT run_at FROM oncehook.delivery d JOIN oncehook.handler h ON h.id = d.handler_id
        WHERE h.name = 'called' AND failures = 1";
    let asked_for: SystemTime = stepped.db.one(asked_for).await;
    let off = due.duration_since(Timestamp::try_from(asked_for).unwrap());
    assert!(off.abs() < SignedDuration::from_secs(60), "{off}");
    assert_eq!(stepped.db.count(waiting).await, 2, "what was to wait waits");

    gate.open();
    barrier.open().await;
    for (key, handler) in [
        ("evt_called", "called"),
        ("evt_called_2", "called"),
        ("evt_held", "held"),
        ("evt_held", "ledger"),
    ] {
        let outcome = right.until_outcome("shop", key, handler).await;
        assert_eq!(outcome["result"], "succeeded", "{key} {handler}");
        assert_eq!(outcome["attempts"], 1, "{key} {handler}");
    }
}

#[tokio::test]
async fn a_nodes_clock_that_steps_ahead_ends_no_lease_and_brings_no_retry() {
    a_node_steps("+3600").await;
}

#[tokio::test]
async fn a_nodes_clock_that_steps_back_keeps_no_lease_and_delays_no_retry() {
    a_node_steps("-3600").await;
}
