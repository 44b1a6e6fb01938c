//! A day without the receiver: what waits is made two hours older, twelve times.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::crash::{ledger, metric};
use crate::support::judge::trial::CALL_SECRET;
use crate::support::node::free_address;
use crate::support::{Node, Received, Receiver, Reply, TestApp, until};

use super::put_many;

/// Of two hours each.
const STEPS: usize = 12;
/// Deliveries that wait from the beginning: of `calls`, and of `bare`.
const CALLS: usize = 150;
const BARE: usize = 40;
/// Calls at once per node.
const SLOTS: usize = 8;
const NODES: usize = 2;
/// What half-open lets through at first.
const PROBES: usize = 2;

/// Its hour is over long before the day is: what keeps a delivery from being dead is that it was not
/// tried often enough.
fn lines(source: &str, more: &str) -> String {
    format!(
        "events = [\"{source}:*\"]\nsecrets = [{{ label = \"a\", value = {CALL_SECRET:?} }}]\non_unknown = \"retry\"\nconcurrency = {SLOTS}\n\
         retry = {{ for = \"1h\", first = \"10ms\", max = \"20ms\" }}\n{more}"
    )
}

/// Calls of `calls` since the receiver is back, and of `bare`.
#[derive(Debug, Default)]
struct Calls {
    begun: usize,
    ended: usize,
    bare: usize,
    /// Begun and ended, when more were under way than may be.
    storms: Vec<(usize, usize)>,
}

impl Calls {
    /// A stage is twice as large as the one before, and begins when that has ended: of `e` calls that
    /// have ended, no more than `2 e + PROBES` of each node have begun.
    fn begin(&mut self) {
        self.begun += 1;
        let under_way = self.begun - self.ended;
        if under_way > (self.ended + NODES * PROBES).min(NODES * SLOTS) {
            self.storms.push((self.begun, self.ended));
        }
    }
}

/// The receiver, on its way back.
async fn back(address: std::net::SocketAddr) -> (Receiver, Arc<Mutex<Calls>>) {
    let calls = Arc::<Mutex<Calls>>::default();
    let seen = Arc::clone(&calls);
    let receiver = Receiver::answering(address, move |call: Received| {
        let seen = Arc::clone(&seen);
        Box::pin(async move {
            if call.path == "/bare" {
                seen.lock().unwrap().bare += 1;
            } else {
                seen.lock().unwrap().begin();
                // Its work.
                tokio::time::sleep(Duration::from_millis(20)).await;
                seen.lock().unwrap().ended += 1;
            }
            Reply::status(200)
        })
    });
    (receiver.await, calls)
}

/// A counter of a handler over both nodes.
async fn sum(nodes: [&Node; NODES], name: &str, handler: &str) -> usize {
    let name = format!("{name}{{handler=\"{handler}\"}}");
    let mut sum = 0.0;
    for node in nodes {
        sum += metric(node, &name).await.unwrap_or_default();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let sum = sum as usize;
    sum
}

/// Two hours pass for whatever waits.
async fn two_hours(app: &TestApp) {
    app.db
        .execute(
            "UPDATE oncehook.delivery SET first_try_at = first_try_at - interval '2 hours', run_at = run_at - interval '2 hours'
              WHERE state = 'ready'",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_without_the_receiver_kills_nothing_and_its_return_meets_no_storm() {
    let address = free_address();
    let url = |path: &str| format!("http://{address}/{path}");
    let breaker = format!(
        "breaker = {{ minimum = 5, first = \"100ms\", max = \"200ms\", probes = {PROBES} }}"
    );
    let mut app = ledger()
        .stripe("other")
        .http_handler("calls", &url("calls"), &lines("stripe", &breaker))
        .http_handler("bare", &url("bare"), &lines("other", "breaker = false"))
        .start()
        .await;
    let second = app.another_node().await;
    put_many(&app, "stripe", "evt", CALLS).await;
    put_many(&app, "other", "evt", BARE).await;
    let opened = async || sum([&app, &second], "oncehook_breaker_opened_total", "calls").await;
    let deferred = async || sum([&app, &second], "oncehook_retries_deferred_total", "bare").await;
    for step in 0..STEPS {
        // Acknowledged, whatever the receiver does.
        put_many(&second, "stripe", &format!("step{step}"), 1).await;
        let before = (opened().await, deferred().await);
        two_hours(&app).await;
        until(
            "it was tried and given up again, and others put off",
            async || opened().await > before.0 && (step < 4 || deferred().await > before.1),
        )
        .await;
    }
    let state = "oncehook_breaker_state{handler=\"calls\"}";
    for node in [&*app, &second] {
        assert!(metric(node, state).await.unwrap() >= 1.0, "not closed");
    }
    let openings = opened().await;
    let tries = "SELECT count(*) FROM oncehook.attempt a JOIN oncehook.handler h ON h.id = a.handler_id WHERE h.name =";
    let tries = async |handler: &str| -> usize {
        let count: i64 = app.db.one(&format!("{tries} '{handler}'")).await;
        usize::try_from(count).unwrap()
    };
    let (called, bare) = (tries("calls").await, tries("bare").await);
    eprintln!("a day: {openings} openings, {called} tries of calls, {bare} of bare");
    assert_eq!(app.db.count("outcome").await, 0, "nothing is dead");
    // What was out when it opened, and then two each time.
    assert!(
        called <= NODES * 2 * SLOTS + PROBES * (openings + NODES),
        "{called} tries of calls, {openings} openings"
    );
    // First tries, those before it counted as failing, and one a second and node.
    assert!(bare <= BARE + NODES * (60 + 20 + SLOTS), "{bare}");

    let (_receiver, calls) = back(address).await;
    let of_calls = "oncehook.handler h ON h.id = handler_id AND h.name = 'calls'";
    until("no call is due", async || {
        let due = format!("delivery JOIN {of_calls} WHERE run_at <= now() + interval '1 s'");
        app.db.count(&due).await == 0
    })
    .await;
    let done = format!("outcome JOIN {of_calls} WHERE result = 'succeeded'");
    let done = app.db.count(&done).await;
    // Beyond the retry budget: within a minute.
    let put_off = format!(
        "delivery JOIN {of_calls} WHERE failures > 0 AND run_at <= now() + interval '1 min'"
    );
    let put_off = app.db.count(&put_off).await;
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    eprintln!("back: {calls:?}, {put_off} put off");
    assert_eq!(calls.storms, []);
    assert_eq!(done + put_off, i64::try_from(CALLS + STEPS).unwrap());
    assert_eq!(i64::try_from(calls.begun).unwrap(), done, "each once");
    assert!(calls.bare <= BARE, "{}", calls.bare);
    assert_eq!(app.db.count("outcome WHERE result <> 'succeeded'").await, 0);
    for node in [&*app, &second] {
        let closed = async || metric(node, state).await == Some(0.0);
        until("it is closed", closed).await;
    }
    app.db.verify().await;
}
