//! What every scenario plays on: nodes without loops, each behind its gate, and the invariants.

use std::sync::Arc;
use std::time::Duration;

use oncehook::HandlerSpec;
use oncehook::engine::turns::{Claimed, Turns};
use oncehook::ingest::{Fate, Origin, StoredRequest, Submission};
use oncehook::provider::{Headers, Request, Verified};
use oncehook::store::ReplayRequest;
use oncehook::{Settings, Store};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_postgres::Client;
use tokio_postgres::config::Host;

use crate::support::inbox::{event, stripe_source};
use crate::support::{TestDb, connect};

use super::explore::{Bound, Explored, Explorer, Order, Program};
use super::step::{Session, Stepper};

/// Effects by plain inserts, so that a second one shows; a place where a statement can be stopped
/// in its middle.
const APP: &str = "
CREATE SCHEMA app;
CREATE TABLE app.ledger (event_id uuid NOT NULL, key text NOT NULL, run int NOT NULL, effect_key text NOT NULL);
CREATE INDEX ON app.ledger (event_id);
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$
  INSERT INTO app.ledger VALUES (event.id, event.key, event.run, event.effect_key);
$$;
-- Waits while somebody holds the pause.
CREATE FUNCTION app.pause() RETURNS void LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock_shared(7002) $$;
-- The row of this number waits while somebody holds the pause, the others pass.
CREATE FUNCTION app.pause_at() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE rows int := coalesce(nullif(current_setting('app.rows', true), ''), '0')::int + 1;
BEGIN
  PERFORM set_config('app.rows', rows::text, true);
  IF rows = TG_ARGV[0]::int THEN PERFORM app.pause(); END IF;
  RETURN NEW;
END $$;
";

/// A batch takes on no more events after 20 ms, which a busy machine spends by itself: here it has
/// an hour, so that an order is the same each time.
const UNHURRIED: &str = "
ALTER FUNCTION oncehook.run_sql_handler RENAME TO run_sql_handler_within;
CREATE FUNCTION oncehook.run_sql_handler(
  text, bool, uuid[], smallint[], int[], text[], text[], interval, bool DEFAULT false,
  OUT no int, OUT answer jsonb, OUT code text, OUT message text, OUT object_name text, OUT line text,
  OUT status int, OUT headers jsonb, OUT body bytea, OUT external_id text
) RETURNS SETOF record LANGUAGE sql AS $$
  SELECT * FROM oncehook.run_sql_handler_within($1, $2, $3, $4, $5, $6, $7, '1 hour', $9)
$$;
";

/// What must hold for these keys at every moment at which no transaction is open.
const BROKEN: &str = "
WITH k AS (SELECT key FROM unnest($1::text[]) AS u(key)),
e AS (SELECT ev.id, ev.key, r.handler_id, ev.state
        FROM oncehook.event ev JOIN k USING (key) LEFT JOIN LATERAL unnest(ev.routes) AS r(handler_id) ON true)
SELECT 'key ' || key || ': ' || count(ek.event_id) || ' keys, ' || (SELECT count(*) FROM oncehook.event WHERE event.key = k.key) || ' events'
  FROM k LEFT JOIN oncehook.event_key ek USING (key) GROUP BY key
HAVING count(ek.event_id) <> (SELECT count(*) FROM oncehook.event WHERE event.key = k.key) OR count(ek.event_id) > 1
UNION ALL
SELECT 'event ' || e.key || ': highest run is ' || CASE WHEN live THEN 'live and finished' ELSE 'neither live nor finished' END
  FROM e, LATERAL (SELECT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = e.handler_id)) l(live),
          LATERAL (SELECT max(run) FROM oncehook.outcome o WHERE o.event_id = e.id AND o.handler_id = e.handler_id) f(run)
 WHERE e.handler_id IS NOT NULL
   AND (NOT live AND f.run IS NULL
        OR live AND f.run >= (SELECT d.run FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = e.handler_id))
UNION ALL
SELECT 'event ' || e.key || ' run ' || o.run || ': ' || o.result || ' with ' || l.n || ' effects'
  FROM e JOIN oncehook.outcome o ON o.event_id = e.id AND o.handler_id = e.handler_id,
       LATERAL (SELECT count(*) FROM app.ledger b WHERE b.event_id = e.id AND b.run = o.run) l(n)
 WHERE l.n <> (o.result = 'succeeded')::int
UNION ALL
SELECT 'event ' || e.key || ': an effect of run ' || b.run || ' without outcome'
  FROM e JOIN app.ledger b ON b.event_id = e.id
 WHERE NOT EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = e.id AND o.handler_id = e.handler_id AND o.run = b.run)
UNION ALL
SELECT 'event ' || e.key || ': run ' || o.run || ' succeeded, and a try of it was lost or failed later'
  FROM e JOIN oncehook.outcome o ON o.event_id = e.id AND o.handler_id = e.handler_id
  JOIN oncehook.attempt a ON a.event_id = e.id AND a.run = o.run AND a.verdict <> 'evidence' AND a.ended_at > o.finished_at
UNION ALL
SELECT 'event ' || e.key || ' run ' || o.run || ': ' || o.attempts || ' attempts, ' || a.n || ' recorded before the last'
  FROM e JOIN oncehook.outcome o ON o.event_id = e.id AND o.handler_id = e.handler_id AND o.result = 'succeeded',
       LATERAL (SELECT count(*) FROM oncehook.attempt a WHERE a.event_id = e.id AND a.run = o.run AND a.verdict <> 'evidence') a(n)
 WHERE o.attempts <> a.n + 1
UNION ALL
SELECT 'event ' || e.key || ': two runs succeeded under one effect key'
  FROM e JOIN app.ledger b ON b.event_id = e.id GROUP BY e.key, b.effect_key HAVING count(*) > 1";

/// A database, nodes on it, each with a gate of its own, and a session for plain statements.
pub(super) struct Stage {
    pub(super) db: TestDb,
    /// Node A, B, C.
    pub(super) nodes: Vec<Turns>,
    /// Session of the plain client, behind its gate: the last letter.
    plain: Stepper,
    steppers: Vec<Stepper>,
    changed: Arc<Notify>,
}

impl Stage {
    /// So many nodes with one handler, after `setup` ran.
    pub(super) async fn new(nodes: usize, setup: &str, handler: HandlerSpec) -> Arc<Self> {
        Self::with(nodes, &format!("{UNHURRIED} {setup}"), handler, 2).await
    }

    /// The same with the product's 20 ms for a batch; who waits for a lock does so for longer.
    pub(super) async fn slow(nodes: usize, setup: &str, handler: HandlerSpec) -> Arc<Self> {
        Self::with(nodes, setup, handler, 6).await
    }

    /// `deadlock_ms`: soon enough to explore many, long enough that it is looked once per wait.
    async fn with(nodes: usize, setup: &str, handler: HandlerSpec, deadlock_ms: u8) -> Arc<Self> {
        let db = TestDb::new().await;
        let name = &db.name;
        db.execute(&format!(
            "{APP}; {setup}; SELECT oncehook.make_partitions(2)"
        ))
        .await;
        db.execute_outside(&format!(
            "ALTER DATABASE {name} SET deadlock_timeout = '{deadlock_ms}ms'"
        ))
        .await;
        let config: tokio_postgres::Config = db.url.parse().unwrap();
        let [Host::Unix(dir)] = config.get_hosts() else {
            panic!("not a Unix socket: {}", db.url);
        };
        let changed = Arc::new(Notify::new());
        let mut steppers = Vec::new();
        let mut turns = Vec::new();
        for _ in 0..nodes {
            let stepper = Stepper::start(dir, Session::new(&changed)).await;
            let store = Store::new(Settings::parse(&stepper.url(&db.name)).unwrap(), 2).unwrap();
            let node = Turns::new(store, vec![stripe_source()], vec![handler.clone()]).await;
            turns.push(node.unwrap());
            steppers.push(stepper);
        }
        let plain = Stepper::start(dir, Session::new(&changed)).await;
        let stage = Self {
            db,
            nodes: turns,
            plain,
            steppers,
            changed,
        };
        // What a node reads once only is no part of any order.
        for node in 0..nodes {
            let claimed = stage.leased(node, &[format!("evt_first_{node}")]).await;
            stage.nodes[node].run(claimed).await;
        }
        Arc::new(stage)
    }

    /// Explores a scenario: `name` is that of its test, after a `/` may follow which variant.
    pub(super) async fn explore(
        &self,
        name: &str,
        bound: Bound,
        prepare: impl AsyncFnMut(u64) -> Order,
    ) -> Explored {
        let sessions = self
            .steppers
            .iter()
            .chain([&self.plain])
            .map(|s| Arc::clone(&s.session));
        let explorer = Explorer {
            name: name.to_owned(),
            sessions: sessions.collect(),
            changed: Arc::clone(&self.changed),
            observer: self.db.client().await,
            bound,
        };
        explorer.run(prepare).await
    }

    /// One run: what each session does, and `check` of what their programs gave.
    pub(super) fn order<F>(
        self: &Arc<Self>,
        programs: Vec<Program>,
        check: impl FnOnce(Arc<Self>, Vec<Value>) -> F + 'static,
    ) -> Order
    where
        F: Future<Output = ()> + 'static,
    {
        let stage = Arc::clone(self);
        Order {
            programs,
            check: Box::new(move |results| Box::pin(check(stage, results))),
        }
    }

    /// The session of a letter, and that of the plain client behind the nodes.
    pub(super) fn session(&self, index: usize) -> &Arc<Session> {
        self.steppers
            .get(index)
            .map_or(&self.plain.session, |s| &s.session)
    }

    /// A plain client behind the last gate.
    pub(super) async fn plain(&self) -> Client {
        connect(&self.plain.url(&self.db.name)).await.unwrap()
    }

    /// Stores events of these keys, by node A.
    pub(super) async fn store(&self, keys: &[String]) {
        let batch = keys.iter().map(|key| submission(key, 1)).collect();
        for answer in self.nodes[0].write(batch).await {
            assert_eq!(answer.unwrap().items[0].1, Fate::New);
        }
    }

    /// Stores events and has a node lease them.
    pub(super) async fn leased(&self, node: usize, keys: &[String]) -> Claimed {
        self.store(keys).await;
        self.claimed(node, keys.len()).await
    }

    /// Has a node lease what is stored: so many.
    pub(super) async fn claimed(&self, node: usize, count: usize) -> Claimed {
        let claimed = self.nodes[node].claim().await.unwrap().unwrap();
        assert_eq!(claimed.count(), count);
        claimed
    }

    /// Every lease is over.
    pub(super) async fn end_leases(&self) {
        let end = "UPDATE oncehook.delivery SET lease_until = now() - interval '1 s' WHERE state = 'leased'";
        self.db.execute(end).await;
    }

    /// Makes suspects of stored events: leased once, lost and reaped.
    pub(super) async fn suspects(&self, keys: &[String]) {
        drop(self.leased(0, keys).await);
        self.end_leases().await;
        assert_eq!(self.nodes[0].reap().await.unwrap(), keys.len());
    }

    /// The invariants hold now, and after everything that is open was run to its end.
    pub(super) async fn check(&self, keys: &[String]) {
        self.invariants(keys).await;
        self.drain().await;
        self.invariants(keys).await;
    }

    pub(super) async fn invariants(&self, keys: &[String]) {
        let broken = self.db.rows(BROKEN, &[&keys]).await;
        let broken: Vec<String> = broken.iter().map(|row| row.get(0)).collect();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    /// Runs what is open to its end, leases of sessions that are gone included.
    pub(super) async fn drain(&self) {
        let node = &self.nodes[0];
        for _ in 0..20 {
            if self.db.count("delivery").await == 0 {
                return;
            }
            self.end_leases().await;
            let due = "UPDATE oncehook.delivery SET run_at = now() WHERE state = 'ready' AND run_at > now() AND run_at < 'infinity'";
            self.db.execute(due).await;
            node.reap().await.unwrap();
            while let Some(claimed) = node.claim().await.unwrap() {
                node.run(claimed).await;
            }
            while let Some(claimed) = node.claim_suspect().await.unwrap() {
                node.run(claimed).await;
            }
        }
        let open: Vec<String> = self.db.all("SELECT d::text FROM oncehook.delivery d").await;
        panic!("not finished: {open:?}");
    }

    /// Recorded tries of an event.
    pub(super) async fn verdicts(&self, key: &str) -> Vec<String> {
        let sql = "SELECT verdict FROM oncehook.attempt a JOIN oncehook.event e ON e.id = a.event_id WHERE e.key = $1 ORDER BY 1";
        self.db
            .rows(sql, &[&key])
            .await
            .iter()
            .map(|row| row.get(0))
            .collect()
    }
}

/// A program of a session.
pub(super) fn program(work: impl Future<Output = Value> + Send + 'static) -> Program {
    Program::Works(Box::pin(work))
}

/// Keys of one run.
pub(super) fn keys(run: u64, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("evt_{run}_{n}")).collect()
}

/// A verified request with one event, whose content is `amount`.
pub(super) fn submission(key: &str, amount: u64) -> Submission {
    submission_of(key, json!({ "amount": amount }))
}

/// A verified request with one event about this object.
pub(super) fn submission_of(key: &str, object: Value) -> Submission {
    let source = stripe_source();
    let body = event(key, "charge.succeeded", object).to_string();
    let verified = Verified {
        secret_label: "a".into(),
        refused_items: Vec::new(),
        items: Vec::new(),
    };
    let headers = Headers::default();
    let request = Request {
        method: "POST",
        target: "/webhooks/stripe",
        headers: &headers,
        body: body.as_bytes(),
    };
    let items = source.provider.unwrap(&request, &verified);
    Submission {
        source_id: 0,
        source: Arc::new(source),
        request: StoredRequest {
            body: body.into(),
            headers: b"[]".to_vec(),
            method: "POST".into(),
            path: "/webhooks/stripe".into(),
            query: None,
            peer: None,
            secret_label: "a".into(),
            correlation_id: uuid::Uuid::new_v4(),
        },
        items,
        routes: Vec::new(),
        origin: Origin::Request,
    }
}

/// A node writes requests as one batch; gives each one's fate or why it is not stored.
pub(super) async fn ingest(node: Turns, batch: Vec<Submission>) -> Value {
    let answers = node
        .write(batch)
        .await
        .into_iter()
        .map(|answer| match answer {
            Ok(receipt) => format!("{:?}", receipt.items[0].1),
            Err(error) => error.reason.to_owned(),
        });
    answers.collect::<Vec<_>>().into()
}

/// A node claims and settles what it got; gives how many.
pub(super) async fn claim_and_run(node: Turns) -> Value {
    match node.claim().await {
        Ok(Some(claimed)) => {
            let count = claimed.count();
            node.run(claimed).await;
            count.into()
        }
        Ok(None) => 0.into(),
        Err(error) => error.to_string().into(),
    }
}

/// The same for one suspect.
pub(super) async fn claim_suspect_and_run(node: Turns) -> Value {
    match node.claim_suspect().await {
        Ok(Some(claimed)) => {
            node.run(claimed).await;
            1.into()
        }
        Ok(None) => 0.into(),
        Err(error) => error.to_string().into(),
    }
}

/// A node works on what it holds.
pub(super) async fn run(node: Turns, claimed: Claimed) -> Value {
    node.run(claimed).await;
    Value::Null
}

/// One sweep of the reaper; gives how many leases had ended.
pub(super) async fn reap(node: Turns) -> Value {
    node.reap()
        .await
        .map_or_else(|error| error.to_string().into(), Value::from)
}

/// A replay; gives the new run, or how it was refused.
pub(super) async fn replay(
    node: Turns,
    key: String,
    force: bool,
    expected_run: Option<i16>,
) -> Value {
    let request = ReplayRequest {
        source: "stripe".into(),
        key,
        handler: "ledger".into(),
        force,
        expected_run,
        reason: "test".into(),
        actor: "test".into(),
    };
    match node.store().replay(&request).await {
        Ok(replayed) => replayed.run.into(),
        Err(error) => error.to_string().into(),
    }
}

/// Stops whoever comes to a place of [`APP`] where it can be stopped.
pub(super) async fn pause(plain: &Client) {
    let lock = "SELECT pg_advisory_lock(7002)";
    plain.batch_execute(lock).await.unwrap();
}

/// Lets those go on who were stopped.
pub(super) async fn go_on(plain: Arc<Client>) -> Value {
    let unlock = "SELECT pg_advisory_unlock(7002)";
    plain.batch_execute(unlock).await.unwrap();
    Value::Null
}

/// Handler `ledger` with this batch and retries within milliseconds.
pub(super) fn ledger(call: &str, batch: u16) -> HandlerSpec {
    let mut spec = crate::support::inbox::sql("ledger", call);
    spec.batch = batch;
    spec.timeout = Duration::from_secs(10);
    spec
}
