//! Between one session and PostgreSQL: holds every statement until the scheduler lets it go.
//!
//! A statement is what the session sends up to a `Sync`, or a simple query. What commutes with
//! whatever the others do passes at once: statements that neither read nor change nor lock anything
//! (BEGIN, SET, SAVEPOINT, the preparing of a statement, at READ COMMITTED), those that read only
//! what no scenario changes, and the end of a transaction that had nothing else in it.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::unix;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Mutex as AsyncMutex, Notify, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::proxy::{executed, read_frame};

/// Beginnings of statements that pass at once.
const PASSING: [&str; 11] = [
    "SHOW ",
    "SET ",
    "RESET ",
    "SAVEPOINT ",
    "RELEASE ",
    "SELECT current_setting",
    "SELECT pg_current_xact_id",
    // The keys that are asked for stand before the order begins, and so do the names; no handler
    // is retired, no delivery is held.
    "-- event_find:",
    "-- registry_unknown:",
    "-- replay_held_lock:",
    "SELECT id, first_name, retired_at",
];

/// Whether a statement ends a transaction; others may follow in one text.
fn ends_transaction(text: &str) -> bool {
    matches!(first_of(text), "COMMIT" | "ROLLBACK")
}

/// The first of several statements in one text.
fn first_of(text: &str) -> &str {
    text.split_once(';').map_or(text, |(first, _)| first)
}

/// How a session stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// At a statement, which has not reached PostgreSQL.
    Held(String),
    /// PostgreSQL works on its statement, or on the end of its connection: these backends.
    Running(Vec<i32>),
    /// Between two statements.
    Between,
    /// It has done all it had to do, or has not been given anything.
    Idle,
}

/// What becomes of a COMMIT whose sender is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    /// It reaches PostgreSQL later.
    Arrives,
    /// It never does, and PostgreSQL learns later that the connection is gone.
    Lost,
}

#[derive(Debug, Default)]
struct Connection {
    pid: i32,
    /// Statements sent and not answered.
    unanswered: usize,
    held: Option<(String, oneshot::Sender<()>)>,
    /// Its client has gone and its backend perhaps not yet.
    closing: bool,
}

#[derive(Debug, Default)]
struct State {
    gated: bool,
    busy: bool,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// The next COMMIT is cut off from its sender and becomes a step of this session.
    lose_commit: Option<(Late, Arc<Session>)>,
    /// One was cut off since the order began.
    lost_commit: bool,
    /// SQLSTATEs of what PostgreSQL refused.
    errors: Vec<String>,
}

/// One session: all connections of one node, or of one plain client.
#[derive(Debug)]
pub(super) struct Session {
    state: Mutex<State>,
    changed: Arc<Notify>,
}

impl Session {
    pub(super) fn new(changed: &Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Arc::clone(changed),
        })
    }

    /// Statements are held from now on.
    pub(super) fn begin(&self, has_program: bool) {
        self.with(|state| {
            state.gated = true;
            state.busy = has_program;
            state.errors.clear();
            state.lost_commit = false;
        });
    }

    /// Its program has come to its end.
    pub(super) fn end(&self) {
        self.with(|state| state.busy = false);
    }

    /// Everything passes.
    pub(super) fn open(&self) {
        self.with(|state| {
            state.gated = false;
            state.busy = false;
            state.lose_commit = None;
            for connection in state.connections.values_mut() {
                if let Some((_, go)) = connection.held.take() {
                    connection.unanswered += 1;
                    go.send(()).ok();
                }
            }
        });
    }

    /// Cuts the next COMMIT off from its sender; it becomes a step of `network`.
    pub(super) fn lose_commit(&self, late: Late, network: &Arc<Self>) {
        self.with(|state| state.lose_commit = Some((late, Arc::clone(network))));
    }

    /// Whether a COMMIT was cut off in this order.
    pub(super) fn has_lost_commit(&self) -> bool {
        self.state.lock().unwrap().lost_commit
    }

    pub(super) fn standing(&self) -> Standing {
        let state = self.state.lock().unwrap();
        let running: Vec<i32> = state
            .connections
            .values()
            .filter(|c| c.closing || c.unanswered > 0)
            .map(|c| c.pid)
            .collect();
        let held = state.connections.values().find_map(|c| c.held.as_ref());
        match held {
            _ if !running.is_empty() => Standing::Running(running),
            Some((label, _)) => Standing::Held(label.clone()),
            None if state.busy => Standing::Between,
            None => Standing::Idle,
        }
    }

    /// SQLSTATEs since the last call; those that only follow from an earlier one are left out.
    pub(super) fn take_errors(&self) -> Vec<String> {
        let mut errors = std::mem::take(&mut self.state.lock().unwrap().errors);
        errors.retain(|code| code != "25P02");
        errors
    }

    /// Backends of its connections.
    pub(super) fn backends(&self) -> Vec<i32> {
        let state = self.state.lock().unwrap();
        state.connections.values().map(|c| c.pid).collect()
    }

    /// Lets the held statement go.
    pub(super) fn release(&self) {
        self.with(|state| {
            let connection = state.connections.values_mut().find(|c| c.held.is_some());
            let connection = connection.unwrap();
            let (_, go) = connection.held.take().unwrap();
            connection.unanswered += 1;
            go.send(()).ok();
        });
    }

    /// These backends have ended.
    pub(super) fn gone(&self, pids: &[i32]) {
        self.with(|state| {
            state
                .connections
                .retain(|_, c| !(c.closing && pids.contains(&c.pid)));
        });
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock().unwrap());
        self.changed.notify_one();
        changed
    }

    fn connection<T>(&self, id: u64, change: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        self.with(|state| state.connections.get_mut(&id).map(change))
    }

    fn opened(&self) -> u64 {
        self.with(|state| {
            state.next += 1;
            state.connections.insert(state.next, Connection::default());
            state.next
        })
    }

    fn closed(&self, id: u64) {
        self.with(|state| {
            if let Some(connection) = state.connections.get_mut(&id) {
                connection.held = None;
                connection.closing = true;
                if connection.pid == 0 || !state.gated {
                    state.connections.remove(&id);
                }
            }
        });
    }
}

/// The way of one session to PostgreSQL.
#[derive(Debug)]
pub(super) struct Stepper {
    pub(super) session: Arc<Session>,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Stepper {
    pub(super) async fn start(socket_dir: &Path, session: Arc<Session>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = socket_dir.join(".s.PGSQL.5432");
        let known = Arc::clone(&session);
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, socket.clone(), Arc::clone(&known)));
            }
        });
        Self {
            session,
            address,
            server,
        }
    }

    pub(super) fn url(&self, database: &str) -> String {
        format!(
            "postgresql://postgres@{}/{database}?sslmode=disable",
            self.address
        )
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(client: TcpStream, socket: PathBuf, session: Arc<Session>) {
    drop(client.set_nodelay(true));
    let Ok(server) = UnixStream::connect(&socket).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let to_client = AsyncMutex::new(Some(to_client));
    // Whose connection it is; another's once its COMMIT was cut off.
    let owner = Mutex::new((Arc::clone(&session), session.opened()));
    tokio::select! {
        _ = frontend(from_client, to_server, &to_client, &owner) => {}
        _ = backend(from_server, &to_client, &owner) => {}
    }
    let (session, id) = owner.into_inner().unwrap();
    session.closed(id);
}

type Owner = Mutex<(Arc<Session>, u64)>;

fn owner(owner: &Owner) -> (Arc<Session>, u64) {
    let owner = owner.lock().unwrap();
    (Arc::clone(&owner.0), owner.1)
}

async fn frontend(
    mut from: OwnedReadHalf,
    mut to: unix::OwnedWriteHalf,
    to_client: &AsyncMutex<Option<OwnedWriteHalf>>,
    own: &Owner,
) -> Option<()> {
    // `sslmode=disable`: the first message is the start-up message.
    to.write_all(&read_frame(&mut from, 0).await?).await.ok()?;
    let mut prepared = HashMap::new();
    let mut batch = Vec::new();
    let mut statement = None;
    // Whether the open transaction has had a statement that was held.
    let mut held = false;
    let (session, id) = owner(own);
    loop {
        let frame = read_frame(&mut from, 1).await?;
        let ends = matches!(frame.first()?, b'Q' | b'S');
        if let Some(text) = executed(&frame, &mut prepared) {
            statement = Some(text);
        }
        batch.extend_from_slice(&frame);
        if !ends {
            // Terminate is not answered.
            if *frame.first()? == b'X' {
                to.write_all(&batch).await.ok()?;
            }
            continue;
        }
        let text = statement.take();
        held &= text.as_deref().is_none_or(|t| !t.starts_with("BEGIN"));
        let text = text.filter(|text| !passes(text));
        let ends_it = text.as_deref().is_some_and(ends_transaction);
        if let Some(text) = text.filter(|_| held || !ends_it) {
            held = !ends_it;
            if let Some(go) = hold(&session, id, label(&text)) {
                go.await.ok()?;
            } else {
                session.connection(id, |c| c.unanswered += 1)?;
            }
            if first_of(&text) == "COMMIT"
                && let Some((late, network)) = session.with(|state| state.lose_commit.take())
            {
                return cut_off(late, &network, &batch, (from, to), to_client, own).await;
            }
        } else {
            session.connection(id, |c| c.unanswered += 1)?;
        }
        to.write_all(&batch).await.ok()?;
        batch.clear();
    }
}

/// Registers a statement at the gate; `None` when the gate is open.
fn hold(session: &Session, id: u64, label: String) -> Option<oneshot::Receiver<()>> {
    session.with(|state| {
        let connection = state.connections.get_mut(&id).filter(|_| state.gated)?;
        let (go, held) = oneshot::channel();
        connection.held = Some((label, go));
        Some(held)
    })
}

/// The sender of a COMMIT loses its connection; what is left of it is the network's.
async fn cut_off(
    late: Late,
    network: &Arc<Session>,
    commit: &[u8],
    (from, mut to): (OwnedReadHalf, unix::OwnedWriteHalf),
    to_client: &AsyncMutex<Option<OwnedWriteHalf>>,
    own: &Owner,
) -> Option<()> {
    let (session, id) = owner(own);
    let other = network.opened();
    let pid = session
        .with(|state| {
            state.lost_commit = true;
            state.connections.remove(&id)
        })?
        .pid;
    network.connection(other, |c| c.pid = pid)?;
    *own.lock().unwrap() = (Arc::clone(network), other);
    let what = match late {
        Late::Arrives => "COMMIT arrives",
        Late::Lost => "COMMIT is lost",
    };
    let go = hold(network, other, what.to_owned());
    drop(from);
    *to_client.lock().await = None;
    session.changed.notify_one();
    if let Some(go) = go {
        go.await.ok()?;
    }
    if late == Late::Lost {
        return None;
    }
    to.write_all(commit).await.ok()?;
    // The backend's side ends the connection once it has answered.
    std::future::pending().await
}

async fn backend(
    mut from: unix::OwnedReadHalf,
    to: &AsyncMutex<Option<OwnedWriteHalf>>,
    own: &Owner,
) -> Option<()> {
    loop {
        let frame = read_frame(&mut from, 1).await?;
        let alive = match &mut *to.lock().await {
            Some(client) => {
                client.write_all(&frame).await.ok()?;
                true
            }
            None => false,
        };
        let (session, id) = owner(own);
        match frame.first()? {
            b'K' => {
                let pid = i32::from_be_bytes(frame.get(5..9)?.try_into().ok()?);
                session.connection(id, |c| c.pid = pid);
            }
            b'E' => {
                let code = frame[5..]
                    .split(|b| *b == 0)
                    .find_map(|field| field.strip_prefix(b"C"));
                let code = String::from_utf8_lossy(code?).into_owned();
                session.with(|state| state.errors.push(code));
            }
            b'Z' => {
                session.connection(id, |c| c.unanswered = c.unanswered.saturating_sub(1));
                if !alive {
                    return None;
                }
            }
            _ => {}
        }
    }
}

fn passes(text: &str) -> bool {
    if text.starts_with("BEGIN") {
        // That of a transaction whose statements follow one by one. Another one is of a single
        // statement behind it, a claim, which has 30 s: it fixes the `now()` by which rows are due.
        return !text.contains("statement_timeout = 30000");
    }
    let constraints = text.starts_with("SET CONSTRAINTS");
    !constraints && PASSING.iter().any(|start| text.starts_with(start))
}

/// The name in a statement's head, or how it begins.
fn label(text: &str) -> String {
    match text
        .strip_prefix("-- ")
        .and_then(|rest| rest.split_once(':'))
    {
        Some((name, _)) => name.to_owned(),
        None => first_of(text)
            .split_whitespace()
            .take(4)
            .collect::<Vec<_>>()
            .join(" "),
    }
}
