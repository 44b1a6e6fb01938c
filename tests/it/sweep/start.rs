//! A process on its way up: a node on a migrated database, or `migrate` on an empty one. It comes
//! to its end or says an error, and succeeds the next time.

use std::cell::Cell;
use std::fs;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout};

use crate::support::database::TestDb;
use crate::support::node::{client, kill9};
use crate::support::signer::{self, STRIPE_SECRET};
use crate::support::{OwnCluster, until};

use super::lane::{Ended, RUN_MAX, VANISHED};
use super::point::{Cut, Kill, Point, Role, Spot};
use super::proxy::WireProxy;
use super::scenario::Scenario;

/// How long the process is cut off.
const FREEZE: Duration = Duration::from_millis(700);

/// The user's function; it needs a type of the schema.
const FIXTURE: &str = "
CREATE SCHEMA app;
CREATE TABLE app.ledger (key text NOT NULL);
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$ INSERT INTO app.ledger VALUES (event.key) $$;
";

/// Everything of the schema that a migration can leave half done.
const SCHEMA: &str = "SELECT string_agg(what, ',' ORDER BY what) FROM (
  SELECT relname::text || relkind::text AS what FROM pg_class WHERE relnamespace = 'oncehook'::regnamespace
  UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = 'oncehook'::regnamespace
  UNION ALL SELECT tgname::text FROM pg_trigger WHERE NOT tgisinternal
  UNION ALL SELECT version::text || name FROM oncehook.schema_history) x";

/// Starts the process with a fault at the point; then again, without, if it did not succeed. Also
/// returns every message until the first start ended.
pub(super) async fn run(
    cluster: &OwnCluster,
    scenario: Scenario,
    point: Option<&Point>,
) -> Result<(Vec<Spot>, Ended), String> {
    let db = match scenario {
        Scenario::Migrate => TestDb::blank_on(cluster.url()).await,
        _ => cluster.database().await,
    };
    let proxy = WireProxy::start(&cluster.socket_dir().await).await;
    let dir = tempfile::tempdir().unwrap();
    let starter = Starter {
        dir,
        pid: Mutex::new(None),
        killed: AtomicU32::new(0),
        verb: match scenario {
            Scenario::Migrate => &["migrate"],
            _ => &["serve", "--announce"],
        },
    };
    let result = timeout(RUN_MAX, through(cluster, &db, &proxy, &starter, point)).await;
    let result = result.unwrap_or_else(|_| Err(format!("not done within {RUN_MAX:?}")));
    let said = fs::read_to_string(starter.dir.path().join("stderr")).unwrap_or_default();
    proxy.thaw();
    result.map_err(|error| format!("{error}\n{said}"))
}

async fn through(
    cluster: &OwnCluster,
    db: &TestDb,
    proxy: &WireProxy,
    starter: &Starter,
    point: Option<&Point>,
) -> Result<(Vec<Spot>, Ended), String> {
    let migrates = starter.verb == ["migrate"];
    if !migrates {
        db.execute(FIXTURE).await;
    }
    starter.configure(&proxy.url(Role::Starter, &db.name));
    proxy
        .arm(point.map(|point| (point.spot.clone(), point.cut)))
        .await;

    let hit = Cell::new(false);
    let (mut up, seen) = {
        let start = async {
            let up = starter.succeed().await;
            (up, proxy.seen())
        };
        let strike = strike(cluster, proxy, point, starter, &hit);
        tokio::pin!(start, strike);
        tokio::select! {
            ended = &mut start => {
                // What it does beside its start can be struck when it has announced itself.
                if hit.get() {
                    strike.await;
                }
                ended
            }
            () = &mut strike => start.await,
        }
    };
    if let Ok((child, _)) = &mut up
        && !migrates
        && hit.get()
        && point.is_some_and(|point| point.kill == Kill::Own)
        && starter.is_killed(child).await
    {
        up = starter.succeed().await;
    }
    proxy.arm(None).await;
    // It may have been struck after the strike was given up.
    proxy.thaw();
    let (_child, public) =
        up.map_err(|code| format!("it ends with {code:?} and without its work"))?;
    if migrates {
        let reference = cluster.database().await;
        let (made, wanted): (String, String) = (db.one(SCHEMA).await, reference.one(SCHEMA).await);
        if made != wanted {
            return Err(format!("the schema is {made}, expected {wanted}"));
        }
    } else {
        serves(db, &public).await?;
    }
    db.verified().await?;
    let reached = hit.get() || point.is_none();
    let ended = if reached {
        Ended::Passed
    } else {
        Ended::NotReached
    };
    Ok((seen, ended))
}

/// Receives an event and books it.
async fn serves(db: &TestDb, public: &str) -> Result<(), String> {
    let body =
        serde_json::json!({ "id": "evt_1", "object": "event", "type": "charge.x", "livemode": true,
        "created": 1_764_655_200, "data": { "object": { "id": "ch_1" } } })
        .to_string();
    until("the event is acknowledged", async || {
        let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), body.as_bytes());
        let request = client()
            .post(format!("http://{public}/webhooks/stripe"))
            .header("Stripe-Signature", signature);
        let answer = request.body(body.clone()).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    })
    .await;
    until("the event is booked", async || {
        db.count("outcome").await == 1
    })
    .await;
    let names: Vec<String> = db
        .all("SELECT name FROM oncehook.source UNION ALL SELECT name FROM oncehook.handler")
        .await;
    let found = (db.count("app.ledger").await, names);
    let wanted = (1, vec!["stripe".to_owned(), "ledger".to_owned()]);
    if found == wanted {
        Ok(())
    } else {
        Err(format!(
            "bookings and names are {found:?}, expected {wanted:?}"
        ))
    }
}

async fn strike(
    cluster: &OwnCluster,
    proxy: &WireProxy,
    point: Option<&Point>,
    starter: &Starter,
    hit: &Cell<bool>,
) {
    let Some(point) = point else {
        return std::future::pending().await;
    };
    let at = proxy.hit().await;
    hit.set(true);
    let struck = Instant::now();
    match point.kill {
        Kill::Own => starter.kill(),
        Kill::Postgres => cluster.kill().await,
        Kill::Nothing | Kill::Other => {}
    }
    at.release();
    if point.kill == Kill::Postgres {
        cluster.restart().await;
    }
    match (point.cut, point.kill) {
        (Cut::Freeze, Kill::Own) => {
            proxy.admit_new();
            sleep_until(struck + VANISHED).await;
            proxy.thaw();
        }
        (Cut::Freeze, _) => {
            sleep_until(struck + FREEZE).await;
            proxy.thaw();
        }
        _ => {}
    }
}

struct Starter {
    dir: tempfile::TempDir,
    pid: Mutex<Option<u32>>,
    /// The process killed last; 0: none.
    killed: AtomicU32,
    verb: &'static [&'static str],
}

impl Starter {
    fn configure(&self, url: &str) {
        let toml = format!(
            "[listen]\npublic = \"127.0.0.1:0\"\napi = \"127.0.0.1:0\"\n[database]\nurl = {url:?}\n[dispatch]\npoll = \"100ms\"\n\
             [[source]]\nname = \"stripe\"\nprovider = \"stripe\"\nsecrets = [{{ label = \"a\", value = {STRIPE_SECRET:?} }}]\n\
             [[handler]]\nname = \"ledger\"\nkind = \"sql\"\ncall = \"app.book\"\nevents = [\"*:*\"]\nlease = \"1s\"\n"
        );
        fs::write(self.dir.path().join("starter.toml"), toml).unwrap();
    }

    /// Starts it; returns when it has announced itself or, for a verb that ends, succeeded. An
    /// error is its exit code.
    async fn start(&self) -> Result<(Child, String), Option<i32>> {
        let dir = self.dir.path();
        let stderr = fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join("stderr"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_oncehook"))
            .args(self.verb)
            .arg("--config")
            .arg(dir.join("starter.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        *self.pid.lock().unwrap() = child.id();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        if self.verb == ["migrate"] {
            stdout.read_to_string(&mut line).await.unwrap();
            let code = child.wait().await.unwrap().code();
            return if code == Some(0) {
                Ok((child, line))
            } else {
                Err(code)
            };
        }
        stdout.read_line(&mut line).await.unwrap();
        match serde_json::from_str::<Value>(&line) {
            Ok(said) => Ok((child, said["public"].as_str().unwrap().to_owned())),
            Err(_) => Err(child.wait().await.unwrap().code()),
        }
    }

    /// Starts it until it succeeds; when it is killed, refused or not connected, again.
    async fn succeed(&self) -> Result<(Child, String), Option<i32>> {
        let mut up = self.start().await;
        while matches!(up, Err(None | Some(1 | 3))) {
            up = self.start().await;
        }
        up
    }

    fn kill(&self) {
        let pid = *self.pid.lock().unwrap();
        if let Some(pid) = pid {
            self.killed.store(pid, Ordering::SeqCst);
            kill9(pid);
        }
    }

    /// Whether it was this process that was killed; waits for its end.
    async fn is_killed(&self, child: &mut Child) -> bool {
        let killed = child.id() == Some(self.killed.load(Ordering::SeqCst));
        if killed {
            child.wait().await.unwrap();
        }
        killed
    }
}
