//! One lane: a PostgreSQL, a proxy, two nodes and a stand-by. Runs one crash point after another.

use std::cell::Cell;
use std::fs;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::support::node::{Launch, kill9};
use crate::support::signer::STRIPE_SECRET;
use crate::support::{Node, OwnCluster, Receiver, TestDb};

use super::check;
use super::outside::{ADYEN_SECRET, Outside};
use super::point::{Cut, Kill, Point, Role, Spot};
use super::proxy::WireProxy;
use super::scenario::Scenario;
use super::service::Service;
use super::start;

/// How long a process is cut off: past its leases of a second and a round of the reaper's.
const FREEZE: Duration = Duration::from_millis(2_200);
/// After so long, PostgreSQL learns that a host has vanished, as by keepalives of TCP. What it must
/// free sooner, its time-outs free: the longest is that of a handler, 1 s, and 5 s.
pub(super) const VANISHED: Duration = Duration::from_secs(9);
/// How long a killed node may need until it serves again, whoever still holds locks.
const RESTART_MAX: Duration = Duration::from_secs(20);
/// How long a run may take in all.
pub(super) const RUN_MAX: Duration = Duration::from_secs(40);

/// How a run ended, if not with a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Passed,
    /// Its message did not come, so nothing was cut.
    NotReached,
}

/// What the database holds beside our schema.
pub(super) struct Fixture;

impl Fixture {
    /// A ledger by plain inserts and a balance: an effect that happens twice shows in both.
    const SQL: &str = "
CREATE SCHEMA app;
CREATE TABLE app.ledger (handler text NOT NULL, key text NOT NULL, run int NOT NULL, amount bigint NOT NULL, effect_key text NOT NULL);
CREATE TABLE app.balance (total bigint NOT NULL);
INSERT INTO app.balance VALUES (0);
CREATE FUNCTION app.put(handler text, event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  body jsonb := oncehook.body_json(event);
  amount bigint := coalesce(body #>> '{data,object,amount}', body #>> '{NotificationRequestItem,amount,value}', body #>> '{amount,value}');
BEGIN
  INSERT INTO app.ledger VALUES (handler, event.key, event.run, amount, event.effect_key);
  UPDATE app.balance SET total = total + amount;
END $$;
CREATE FUNCTION app.ledger(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ SELECT app.put('ledger', event) $$;
CREATE FUNCTION app.orphan(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ SELECT app.put('orphan', event) $$;
CREATE FUNCTION app.poison(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ SELECT app.put('poison', event) $$;
CREATE FUNCTION app.laned(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ SELECT app.put('laned', event) $$;
CREATE FUNCTION app.echo(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ SELECT app.put('echo', event) $$;
CREATE FUNCTION app.emitter(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.put('emitter', event);
  PERFORM oncehook.emit_bytes('inner', event.key || '.inner', 'inner.one', event.body, cause => event);
END $$;
CREATE FUNCTION app.late(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ SELECT app.put('late', event) $$;
CREATE FUNCTION app.moody(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.put('moody', event);
  IF event.attempt = 1 THEN RAISE EXCEPTION 'not yet'; END IF;
END $$;
CREATE FUNCTION app.broken(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.put('broken', event);
  IF event.run = 1 THEN RAISE EXCEPTION 'never' USING ERRCODE = 'OH001'; END IF;
END $$;
-- As if a node had claimed it at once and died; for a poisonous one, thrice while it ran alone.
CREATE FUNCTION app.orphaned() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  name text := (SELECT h.name FROM oncehook.handler h WHERE id = NEW.handler_id);
BEGIN
  IF NEW.run_at < 'infinity' AND name IN ('orphan', 'poison') THEN
    NEW.state := 'leased';
    NEW.lease_token := gen_random_uuid();
    NEW.leased_at := clock_timestamp();
    NEW.lease_until := clock_timestamp() + interval '20 ms';
    IF name = 'poison' THEN
      NEW.suspect := true; NEW.losses := 3; NEW.losses_alone := 2;
      INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, ended_at, verdict)
      SELECT NEW.event_id, NEW.handler_id, NEW.run, gen_random_uuid(), now(), 'lost' FROM generate_series(1, 3);
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER orphaned BEFORE INSERT ON oncehook.delivery FOR EACH ROW EXECUTE FUNCTION app.orphaned();
";

    /// A handler of former times, $1, and its unfinished delivery of event $1 for handler $2, as if
    /// it had been there when the event came.
    pub(super) const OLD_HANDLER: &str =
        "INSERT INTO oncehook.handler (name, first_name) VALUES ($1, $1) ON CONFLICT DO NOTHING";
    pub(super) const OLD_DELIVERY: &str = "WITH routed AS (
          UPDATE oncehook.event e SET routes = e.routes || h.id, state = NULL FROM oncehook.handler h
           WHERE e.key = $1 AND h.name = $2 AND h.id <> ALL (e.routes) RETURNING e.id, h.id AS handler_id)
        INSERT INTO oncehook.delivery (event_id, handler_id, run_at) SELECT id, handler_id, 'infinity' FROM routed";

    /// Sources and handlers, all but `late`.
    fn handlers(receiver: &Receiver) -> String {
        let sql = |name: &str, events: &str| {
            format!(
                "[[handler]]\nname = {name:?}\nkind = \"sql\"\ncall = \"app.{name}\"\nevents = [{events}]\n\
                 lease = \"1s\"\ntimeout = \"1s\"\n{RETRY}\n"
            )
        };
        let url = receiver.url("/hooks");
        let doubtful = |name: &str, on_unknown: &str| {
            let url = receiver.url("/doubt");
            format!(
                "[[handler]]\nname = {name:?}\nkind = \"http\"\nurl = {url:?}\nevents = [\"stripe:{name}.*\"]\n{on_unknown}\n\
                 secrets = [{{ label = \"a\", value = \"whsec_c2VjcmV0LW9mLXRoZS1zd2VlcA==\" }}]\nlease = \"5300ms\"\ntimeout = \"300ms\"\n\
                 breaker = false\n{RETRY}\n"
            )
        };
        [
            format!(
                "[[source]]\nname = \"stripe\"\nprovider = \"stripe\"\nsecrets = [{{ label = \"a\", value = {STRIPE_SECRET:?} }}]\n\
                 [[source]]\nname = \"adyen\"\nprovider = \"adyen\"\nsecrets = [{{ label = \"a\", value = {ADYEN_SECRET:?} }}]\n"
            ),
            sql("ledger", "\"stripe:charge.*\", \"adyen:AUTHORISATION\""),
            sql("moody", "\"stripe:moody.*\""),
            sql("orphan", "\"stripe:orphan.*\""),
            sql("broken", "\"stripe:broken.*\""),
            sql("poison", "\"stripe:poison.*\""),
            sql("emitter", "\"stripe:emitter.*\""),
            sql("laned", "\"stripe:laned.*\"") + "lane = \"entity\"\n",
            format!(
                "[[handler]]\nname = \"outside\"\nkind = \"http\"\nurl = {url:?}\nevents = [\"stripe:outside.*\"]\non_unknown = \"retry\"\n\
                 secrets = [{{ label = \"a\", value = \"whsec_c2VjcmV0LW9mLXRoZS1zd2VlcA==\" }}]\nlease = \"6s\"\ntimeout = \"1s\"\n{RETRY}\n"
            ),
            doubtful(
                "doubt",
                &format!(
                    "on_unknown = \"probe\"\nprobe = {{ url = {:?}, after = [\"20ms\", \"200ms\", \"1s\", \"2s\", \"4s\", \"8s\", \"16s\"] }}",
                    receiver.url("/by-key/{effect_key}")
                ),
            ),
            doubtful("open", "on_unknown = \"hold\""),
        ]
        .concat()
    }

    /// What the inbox does not know: it relays no emitted events, so that it is the worker's.
    fn late() -> String {
        format!(
            "[[source]]\nname = \"inner\"\nprovider = \"internal\"\n\
             [[handler]]\nname = \"echo\"\nkind = \"sql\"\ncall = \"app.echo\"\nevents = [\"inner:*\"]\nlease = \"1s\"\ntimeout = \"1s\"\n{RETRY}\n\
             [[handler]]\nname = \"late\"\nkind = \"sql\"\ncall = \"app.late\"\nevents = [\"stripe:late.*\"]\nlease = \"1s\"\ntimeout = \"1s\"\n{RETRY}\n"
        )
    }
}

const RETRY: &str = "retry = { for = \"1h\", first = \"20ms\", max = \"100ms\" }";

/// One lane.
pub(super) struct Lane {
    // Dropped in this order: the nodes die before what they stand on.
    inbox: Node,
    worker: Node,
    standby: Node,
    proxy: WireProxy,
    service: Service,
    _receiver: Receiver,
    db: TestDb,
    pub(super) cluster: OwnCluster,
    command: Launch,
    runs: u32,
    /// Sum of what was expected to be booked so far.
    booked: i64,
    /// How much of the nodes' output belongs to earlier runs.
    said: [usize; 3],
    _dir: tempfile::TempDir,
}

impl Lane {
    pub(super) async fn start() -> Self {
        let cluster = OwnCluster::with_settings(&[("max_wal_size", "128MB")]).await;
        let db = cluster.database().await;
        db.execute(Fixture::SQL).await;
        let proxy = WireProxy::start(&cluster.socket_dir().await).await;
        let (service, receiver) = Service::start().await;
        let dir = tempfile::tempdir().unwrap();
        let launch = |name: &str, url: &str, dispatch: bool, late: bool| Launch {
            command: vec![
                env!("CARGO_BIN_EXE_oncehook").to_owned(),
                "serve".to_owned(),
            ],
            toml: format!(
                "[database]\nurl = {url:?}\n[dispatch]\nenabled = {dispatch}\npoll = \"100ms\"\nconnections = 2\n{}{}",
                Fixture::handlers(&receiver),
                if late { Fixture::late() } else { String::new() },
            ),
            dir: dir.path().to_owned(),
            name: name.to_owned(),
            env: Vec::new(),
        };
        let url = |role| proxy.url(role, &db.name);
        let (inbox, worker, standby) = tokio::join!(
            Node::start(launch("inbox", &url(Role::Inbox), false, false)),
            Node::start(launch("worker", &url(Role::Worker), true, true)),
            Node::start(launch(
                "standby",
                &format!("{}&application_name=standby", db.url),
                true,
                true
            )),
        );
        let command = launch("command", &url(Role::Command), false, true);
        fs::write(dir.path().join("command.toml"), &command.toml).unwrap();
        Self {
            inbox,
            worker,
            standby,
            proxy,
            service,
            _receiver: receiver,
            db,
            cluster,
            command,
            runs: 0,
            booked: 0,
            said: [0; 3],
            _dir: dir,
        }
    }

    /// Plays a scenario without any fault; returns every message of its role. `cold`: on new
    /// connections.
    pub(super) async fn golden(&mut self, scenario: Scenario, cold: bool) -> Vec<Spot> {
        if scenario.is_a_start() {
            return start::run(&self.cluster, scenario, None).await.unwrap().0;
        }
        self.run(scenario, None, cold).await.unwrap();
        self.proxy.seen()
    }

    /// One run at a crash point.
    ///
    /// # Errors
    ///
    /// What does not hold afterwards, with what the nodes said.
    pub(super) async fn strike_at(&mut self, point: &Point) -> Result<Ended, String> {
        let scenario = Scenario::named(&point.scenario).ok_or("no such scenario")?;
        if scenario.is_a_start() {
            let ran = start::run(&self.cluster, scenario, Some(point)).await;
            return ran.map(|(_, ended)| ended);
        }
        // What happens on a new connection only.
        let cold = point.spot.is_of_a_new_connection();
        self.run(scenario, Some(point), cold).await
    }

    async fn run(
        &mut self,
        scenario: Scenario,
        point: Option<&Point>,
        cold: bool,
    ) -> Result<Ended, String> {
        self.runs += 1;
        self.said = [&self.inbox, &self.worker, &self.standby].map(|node| node.output().len());
        self.standby.sigstop();
        self.proxy.thaw();
        if cold {
            self.proxy.close_all();
        }
        self.proxy.probe(Some(self.db.url.clone())).await;
        let target = point.map(|point| (point.spot.clone(), point.cut));
        self.proxy.arm(target).await;
        let outside = Outside::new(
            &self.inbox,
            &self.db.url,
            &self.service,
            &self.command,
            format!("r{}", self.runs),
        );
        let calls_before = self.service.calls().len();

        let end = Instant::now() + RUN_MAX;
        let hit = Cell::new(false);
        let ran = {
            let play = scenario.play(&outside);
            let strike = self.strike(point, &outside, &hit);
            let both = async {
                tokio::pin!(play, strike);
                tokio::select! {
                    () = &mut play => {
                        if hit.get() && point.is_some_and(|point| point.kill == Kill::Postgres) {
                            // It is on its way back.
                            strike.await;
                        }
                    }
                    () = &mut strike => play.await,
                }
            };
            tokio::time::timeout_at(end, both).await
        };
        if ran.is_err() {
            return Err(self
                .stuck(&outside, "the scenario does not come to its end")
                .await);
        }
        self.proxy.disarm().await;
        // The scenario may have ended while the struck are still on their way back.
        self.back().await?;
        self.proxy.thaw();
        self.standby.sigcont();
        if tokio::time::timeout_at(end, self.quiet(&outside))
            .await
            .is_err()
        {
            return Err(self
                .stuck(&outside, "work is left, or a session in a transaction")
                .await);
        }
        self.proxy.probe(None).await;
        let calls = self.service.calls().split_off(calls_before);
        self.booked += outside.booked();
        let mut broken = check::broken(&outside, &calls, &self.service, self.booked).await;
        broken.extend(self.db.verified().await.err());
        if !broken.is_empty() {
            return Err(format!("{}\n{}", broken.join("\n"), self.said()));
        }
        Ok(if hit.get() || point.is_none() {
            Ended::Passed
        } else {
            Ended::NotReached
        })
    }

    /// Waits for the message, kills, brings back what died.
    async fn strike(&mut self, point: Option<&Point>, outside: &Outside, hit: &Cell<bool>) {
        let Some(point) = point else {
            return std::future::pending().await;
        };
        let at = self.proxy.hit().await;
        hit.set(true);
        let struck = Instant::now();
        self.standby.sigcont();
        match point.kill {
            Kill::Nothing => {}
            Kill::Own => self.kill(at.role, outside),
            Kill::Other if at.role == Role::Worker => self.inbox.kill9(),
            Kill::Other => self.worker.kill9(),
            Kill::Postgres => self.cluster.kill().await,
        }
        at.release();
        if point.kill == Kill::Postgres {
            self.cluster.restart().await;
        }
        if point.cut == Cut::Freeze && point.kill == Kill::Own {
            // Its host has vanished: PostgreSQL hears nothing more of it, not even an end.
            self.proxy.admit_new();
        }
        self.back().await.unwrap();
        if point.cut == Cut::Freeze {
            let own = point.kill == Kill::Own;
            sleep_until(struck + if own { VANISHED } else { FREEZE }).await;
            self.proxy.thaw();
        }
    }

    fn kill(&mut self, role: Role, outside: &Outside) {
        match role {
            Role::Inbox => self.inbox.kill9(),
            Role::Worker => self.worker.kill9(),
            _ => {
                let pid = *outside.command_pid.lock().unwrap();
                if let Some(pid) = pid {
                    kill9(pid);
                }
            }
        }
    }

    /// Starts again what is dead, as its supervisor would: until it serves.
    async fn back(&mut self) -> Result<(), String> {
        let end = Instant::now() + RESTART_MAX;
        for node in [&mut self.inbox, &mut self.worker] {
            while !node.is_alive() {
                if let Err(said) = node.try_restart().await
                    && Instant::now() > end
                {
                    return Err(format!("a killed node does not serve again: {said}"));
                }
            }
        }
        Ok(())
    }

    /// Waits until nothing is left to do and no node is in the middle of anything.
    async fn quiet(&self, outside: &Outside) {
        outside
            .look
            .until("SELECT NOT EXISTS (SELECT FROM oncehook.delivery)", &[])
            .await;
        let sql =
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                    AND application_name = 'oncehook' AND xact_start < now() - interval '30 ms')";
        outside.look.until(sql, &[]).await;
    }

    async fn stuck(&self, outside: &Outside, what: &str) -> String {
        let left = check::left(outside).await;
        format!("{what} within {RUN_MAX:?}:\n{left}\n{}", self.said())
    }

    /// What the nodes said in this run.
    fn said(&self) -> String {
        let nodes = [&self.inbox, &self.worker, &self.standby];
        let texts = nodes.iter().zip(self.said).map(|(node, from)| {
            let output = node.output();
            output.get(from..).unwrap_or(&output).to_owned()
        });
        texts.collect::<Vec<_>>().join("\n--\n")
    }
}
