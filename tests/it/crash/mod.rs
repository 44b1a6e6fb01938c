//! Crashes and races, with nodes as child processes so that SIGKILL and SIGSTOP are real.

mod chaos;
mod clock;
mod commit;
pub(crate) mod http;
mod kill;
mod lease;
mod poison;
mod retry;
mod stop;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::dispatch::LEDGER;
use crate::support::inbox::event;
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{
    Action, AppBuilder, Node, PgProxy, TestApp, TestDb, backend_pid, until, until_some,
};

/// Short polls: what a signal does not bring is found soon.
pub(crate) const POLL: &str = "[dispatch]\npoll = \"50ms\"";

/// Retries within milliseconds. The lease is long, so that a busy machine loses none by itself;
/// [`end_leases`] ends it.
pub(crate) const QUICK: &str = "retry = { for = \"1m\", first = \"20ms\", max = \"100ms\" }";

/// Books, then waits while somebody holds the advisory lock [`Barrier`].
pub(crate) const BOOK_BEHIND_BARRIER: &str = "
CREATE FUNCTION app.book_behind_barrier(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.book(event);
  PERFORM pg_advisory_xact_lock_shared(7001);
END $$";

/// A Stripe source `stripe`, a ledger, short polls.
pub(crate) fn ledger() -> AppBuilder {
    TestApp::builder().stripe("stripe").setup(LEDGER).toml(POLL)
}

/// As [`ledger`], but nothing is handled until [`begin_handling`].
pub(crate) fn storing_ledger() -> AppBuilder {
    ledger().toml("enabled = false")
}

/// Restarts the node of [`storing_ledger`] so that it handles what it has stored.
pub(crate) async fn begin_handling(app: &mut TestApp) {
    let toml = app.toml().replace("enabled = false", "enabled = true");
    app.reconfigure(&toml);
    app.restart().await;
}

/// The same with handler `ledger` that books at once.
pub(crate) fn booking() -> AppBuilder {
    ledger().sql_handler("ledger", "app.book", QUICK)
}

/// The same with a handler that books and then waits for the [`Barrier`].
pub(crate) fn held_booking(lines: &str) -> AppBuilder {
    ledger()
        .setup(BOOK_BEHIND_BARRIER)
        .sql_handler("ledger", "app.book_behind_barrier", lines)
}

/// A database with a proxy in front of it.
pub(crate) async fn proxied() -> (TestDb, PgProxy) {
    let db = TestDb::new().await;
    let proxy = PgProxy::start(&db.url).await;
    (db, proxy)
}

/// A live event of that id.
pub(crate) fn paid(id: &str) -> Value {
    event(id, "charge.succeeded", json!({"id": "ch_1", "amount": 5}))
}

/// Sends to a node from a task of its own, as somebody else does.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    http: reqwest::Client,
    url: String,
}

impl Sender {
    pub(crate) fn to(node: &Node) -> Self {
        Self {
            http: node.http.clone(),
            url: node.webhook_url("stripe"),
        }
    }

    /// Status and whether it was a replay; `None` without an answer.
    pub(crate) async fn send(&self, event: &Value) -> Option<(u16, bool)> {
        let body = event.to_string();
        let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), body.as_bytes());
        let request = self.http.post(&self.url);
        let sent = request
            .header("Stripe-Signature", signature)
            .body(body)
            .send();
        let response = sent.await.ok()?;
        let replayed = response.headers().contains_key("idempotency-replayed");
        Some((response.status().as_u16(), replayed))
    }

    /// In the background.
    pub(crate) fn spawn(&self, event: Value) -> JoinHandle<Option<(u16, bool)>> {
        let sender = self.clone();
        tokio::spawn(async move { sender.send(&event).await })
    }
}

/// A correctly signed request of source `stripe`, as it goes over the wire.
fn signed_request(event: &Value) -> String {
    let body = event.to_string();
    let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), body.as_bytes());
    format!(
        "POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nStripe-Signature: {signature}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends and expects 200; tells whether it was a replay.
pub(crate) async fn put(node: &Node, event: &Value) -> bool {
    let (status, replayed) = Sender::to(node).send(event).await.unwrap();
    assert_eq!(status, 200, "{} is stored: {}", event["id"], node.output());
    replayed
}

/// Sends until one of the nodes has stored it, whichever is alive.
pub(crate) async fn put_at_last(nodes: [&Node; 2], event: &Value) {
    let mut turn = 0;
    until("it is stored", async || {
        turn += 1;
        let sent = Sender::to(nodes[turn % 2]).send(event).await;
        sent.is_some_and(|(status, _)| status == 200)
    })
    .await;
}

/// Handlers that share this lock wait until it is opened.
pub(crate) struct Barrier {
    client: Client,
    pid: i32,
}

impl Barrier {
    pub(crate) async fn closed(db: &TestDb) -> Self {
        let client = db.client().await;
        client
            .batch_execute("SELECT pg_advisory_lock(7001)")
            .await
            .unwrap();
        let pid = backend_pid(&client).await;
        Self { client, pid }
    }

    /// Waits until a handler waits; returns its backend.
    pub(crate) async fn until_waited(&self, db: &TestDb) -> i32 {
        db.until_blocked_by(self.pid).await
    }

    pub(crate) async fn open(self) {
        self.client
            .batch_execute("SELECT pg_advisory_unlock_all()")
            .await
            .unwrap();
    }
}

/// Waits until no node's connection is left: whatever they had open is decided.
pub(crate) async fn until_disconnected(db: &TestDb) {
    until("the nodes' connections end", async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'oncehook'";
        db.one::<i64>(sql).await == 0
    })
    .await;
}

/// Restarts a killed node once the leases it held have ended.
pub(crate) async fn restart_after_leases(app: &mut TestApp) {
    end_leases(&app.db).await;
    app.restart().await;
}

/// Kills a node whose statement the proxy holds back, so that PostgreSQL never gets it.
pub(crate) async fn kill_before(app: &mut TestApp, proxy: &PgProxy) {
    app.kill9();
    proxy.cut();
    until_disconnected(&app.db).await;
    proxy.thaw();
}

/// Two batches are under way and no statement of theirs reaches PostgreSQL: what comes next waits
/// in the node's queue. Until [`PgProxy::thaw`].
pub(crate) async fn hold_two_batches(
    app: &TestApp,
    proxy: &PgProxy,
) -> Vec<JoinHandle<Option<(u16, bool)>>> {
    let sender = Sender::to(app);
    proxy.arm("BEGIN", Action::FreezeBefore);
    let first = sender.spawn(paid("evt_first"));
    proxy.until_fired(1).await;
    let connections = proxy.connections();
    let second = sender.spawn(paid("evt_second"));
    until("a second batch is under way", async || {
        proxy.connections() > connections
            && metric(app, "oncehook_ingest_queue_requests").await == Some(0.0)
    })
    .await;
    vec![first, second]
}

/// How often an event was booked.
pub(crate) async fn booked(db: &TestDb, key: &str) -> i64 {
    db.count(&format!("app.ledger WHERE key = '{key}'")).await
}

/// The timeline of an event that was stored.
pub(crate) async fn timeline(node: &Node, key: &str) -> Value {
    node.timeline("stripe", key).await.unwrap()
}

/// The verdicts in an event's history, oldest first.
pub(crate) async fn verdicts(node: &Node, key: &str) -> Vec<String> {
    let timeline = timeline(node, key).await;
    let attempts = timeline["attempts"].as_array().unwrap();
    attempts
        .iter()
        .map(|attempt| attempt["verdict"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits for the outcome; checks that it is the only one, succeeded, that its effect is there
/// once, and that nothing is left to do. Returns the outcome.
pub(crate) async fn until_booked_once(node: &Node, db: &TestDb, key: &str) -> Value {
    let outcome = node.until_outcome("stripe", key, "ledger").await;
    assert_eq!(outcome["result"], "succeeded", "{outcome}");
    let all = timeline(node, key).await;
    assert_eq!(all["outcomes"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!(all["deliveries"].as_array().unwrap().len(), 0, "{all}");
    assert_eq!(booked(db, key).await, 1, "{all}");
    outcome
}

/// Every lease ends now, as if its time had passed.
pub(crate) async fn end_leases(db: &TestDb) {
    db.execute(
        "UPDATE oncehook.delivery SET lease_until = now() - interval '1 ms' WHERE state = 'leased'",
    )
    .await;
}

/// A number of `/metrics`; a sum over its labels.
pub(crate) async fn metric(node: &Node, name: &str) -> Option<f64> {
    let (_, text) = node.get("/metrics").await;
    let values: Vec<f64> = text
        .as_str()
        .unwrap_or_default()
        .lines()
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Waits until a metric has such a value.
pub(crate) async fn until_metric(node: &Node, name: &str, fits: impl Fn(f64) -> bool) -> f64 {
    until_some(&format!("{name} shows it"), async || {
        metric(node, name).await.filter(|value| fits(*value))
    })
    .await
}
