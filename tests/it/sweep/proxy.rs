//! Between the nodes and PostgreSQL: numbers every protocol message and cuts at a chosen one.
//!
//! Each [`Role`] has an address of its own, so that a message is known by whose it is. Where
//! several statements travel together, the message is cut where it stands among them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixStream, unix};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::support::connect;
use crate::support::proxy::read_frame;

use super::label::{Dialogue, Due, Message};
use super::point::{Cut, Role, Spot};

/// How long a statement may follow a BEGIN or SET and still be taken for sent together with it.
const TOGETHER: Duration = Duration::from_millis(5);

/// Longest that a connection waits for the kill that belongs to its cut.
const KILL_MAX: Duration = Duration::from_secs(10);

/// What a poll of the dispatcher would find.
const DUE: &str = "SELECT EXISTS (SELECT FROM oncehook.delivery WHERE state = 'ready' AND NOT suspect AND run_at <= now()),
    EXISTS (SELECT FROM oncehook.delivery WHERE state = 'ready' AND suspect AND run_at <= now()),
    EXISTS (SELECT FROM oncehook.delivery WHERE state = 'leased' AND lease_until < now()),
    EXISTS (SELECT FROM oncehook.emitted WHERE lease_until < now()),
    EXISTS (SELECT FROM oncehook.delivery WHERE state = 'uncertain' AND run_at <= now())";

/// The armed message has come and is held; nothing of its connection passes until `go_on`.
#[derive(Debug)]
pub(super) struct Hit {
    pub(super) role: Role,
    go_on: oneshot::Sender<()>,
}

impl Hit {
    /// The kill has taken place: the cut may.
    pub(super) fn release(self) {
        // The connection may have gone by itself.
        self.go_on.send(()).ok();
    }
}

#[derive(Debug, Default)]
struct Numbers {
    counts: HashMap<String, u32>,
    seen: Vec<Spot>,
    armed: Option<(Spot, Cut)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Traffic {
    /// Whose connections are held, up to which one.
    frozen: Option<(Role, u64)>,
    /// Connections up to this one are closed.
    closed: u64,
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    numbers: Mutex<Numbers>,
    traffic: watch::Sender<Traffic>,
    hits: mpsc::UnboundedSender<Hit>,
    connections: AtomicU64,
    /// Where polls are asked about; nothing is asked while it is `None`.
    database: Mutex<Option<String>>,
    prober: tokio::sync::Mutex<Option<Client>>,
}

/// The proxy; it and its connections end when it is dropped.
#[derive(Debug)]
pub(super) struct WireProxy {
    shared: Arc<Shared>,
    addresses: HashMap<Role, SocketAddr>,
    hits: tokio::sync::Mutex<mpsc::UnboundedReceiver<Hit>>,
    servers: Vec<JoinHandle<()>>,
}

impl WireProxy {
    /// In front of the cluster whose socket is in this folder.
    pub(super) async fn start(socket_dir: &std::path::Path) -> Self {
        let (sender, hits) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            socket: socket_dir.join(".s.PGSQL.5432"),
            numbers: Mutex::default(),
            traffic: watch::Sender::new(Traffic::default()),
            hits: sender,
            connections: AtomicU64::new(0),
            database: Mutex::new(None),
            prober: tokio::sync::Mutex::new(None),
        });
        let mut addresses = HashMap::new();
        let mut servers = Vec::new();
        for role in Role::ALL {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.insert(role, listener.local_addr().unwrap());
            let known = Arc::clone(&shared);
            servers.push(tokio::spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    connections.spawn(serve(client, role, Arc::clone(&known)));
                }
            }));
        }
        Self {
            shared,
            addresses,
            hits: tokio::sync::Mutex::new(hits),
            servers,
        }
    }

    /// The URL of a database for a role.
    pub(super) fn url(&self, role: Role, database: &str) -> String {
        let address = self.addresses[&role];
        format!("postgresql://postgres@{address}/{database}?sslmode=disable")
    }

    /// Asks this database what polls will find; `None`: takes every poll for one with work.
    pub(super) async fn probe(&self, url: Option<String>) {
        *self.shared.database.lock().unwrap() = url;
        *self.shared.prober.lock().await = None;
    }

    /// Counts from the beginning, and cuts at this message.
    pub(super) async fn arm(&self, target: Option<(Spot, Cut)>) {
        *self.shared.numbers.lock().unwrap() = Numbers {
            armed: target,
            ..Numbers::default()
        };
        while self.hits.lock().await.try_recv().is_ok() {}
    }

    /// Cuts at nothing from now on: what still comes is behind the end of the scenario, and nobody
    /// would end its freeze.
    pub(super) async fn disarm(&self) {
        self.shared.numbers.lock().unwrap().armed = None;
        while self.hits.lock().await.try_recv().is_ok() {}
    }

    /// Every message since [`WireProxy::arm`], in order.
    pub(super) fn seen(&self) -> Vec<Spot> {
        self.shared.numbers.lock().unwrap().seen.clone()
    }

    /// Waits until the armed message has come.
    pub(super) async fn hit(&self) -> Hit {
        self.hits.lock().await.recv().await.unwrap()
    }

    /// Lets a frozen role's new connections pass; those of its dead process stay as they are.
    pub(super) fn admit_new(&self) {
        let newest = self.shared.connections.load(Ordering::SeqCst);
        self.shared.traffic.send_modify(|traffic| {
            if let Some((_, last)) = &mut traffic.frozen {
                *last = newest;
            }
        });
    }

    /// Everything held back passes.
    pub(super) fn thaw(&self) {
        self.shared
            .traffic
            .send_modify(|traffic| traffic.frozen = None);
    }

    /// Closes every connection; new ones are served.
    pub(super) fn close_all(&self) {
        let newest = self.shared.connections.load(Ordering::SeqCst);
        self.shared
            .traffic
            .send_modify(|traffic| traffic.closed = newest);
    }
}

impl Drop for WireProxy {
    fn drop(&mut self) {
        for server in &self.servers {
            server.abort();
        }
    }
}

/// One connection.
struct Wire {
    id: u64,
    role: Role,
    dialogue: Mutex<Dialogue>,
    held: watch::Sender<bool>,
    /// From this exchange on, answers are lost; 0: none is.
    lost: AtomicU64,
    reset: AtomicBool,
}

impl Shared {
    /// Counts a message; tells whether it is the armed one.
    fn number(&self, role: Role, message: &Message) -> Option<Cut> {
        let name = message.name.as_ref()?;
        let name = format!("{role} {name}");
        let mut numbers = self.numbers.lock().unwrap();
        let count = numbers.counts.entry(name.clone()).or_default();
        *count += 1;
        let spot = Spot {
            name,
            occurrence: *count,
        };
        let hit = numbers.armed.take_if(|(armed, _)| *armed == spot);
        if let Some((_, Cut::Freeze)) = hit {
            // New connections too: the process is cut off from PostgreSQL. Under the lock, so that no
            // freeze begins behind the thaw that follows a disarming.
            let frozen = Some((role, u64::MAX));
            self.traffic.send_modify(|traffic| traffic.frozen = frozen);
        }
        numbers.seen.push(spot);
        hit.map(|(_, cut)| cut)
    }

    /// Waits while this connection is frozen.
    async fn thawed(&self, wire: &Wire) {
        let mut traffic = self.traffic.subscribe();
        let passes = |traffic: &Traffic| {
            traffic
                .frozen
                .is_none_or(|(role, last)| role != wire.role || wire.id > last)
        };
        drop(traffic.wait_for(passes).await);
    }

    /// Waits while this connection is held or frozen.
    async fn passes(&self, wire: &Wire) {
        let mut held = wire.held.subscribe();
        drop(held.wait_for(|held| !held).await);
        self.thawed(wire).await;
    }

    /// Holds the connection until the kill has taken place.
    async fn hit(&self, wire: &Wire, cut: Cut) {
        wire.held.send_replace(true);
        wire.reset.store(cut == Cut::Reset, Ordering::SeqCst);
        let (go_on, gone) = oneshot::channel();
        let role = wire.role;
        if self.hits.send(Hit { role, go_on }).is_ok() {
            drop(timeout(KILL_MAX, gone).await);
        }
        if cut == Cut::Freeze {
            wire.held.send_replace(false);
            self.thawed(wire).await;
        }
    }

    async fn due(&self) -> Option<Due> {
        let url = self.database.lock().unwrap().clone()?;
        let mut prober = self.prober.lock().await;
        if prober.as_ref().is_none_or(Client::is_closed) {
            *prober = connect(&url).await.ok();
        }
        let row = prober.as_ref()?.query_one(DUE, &[]).await.ok()?;
        Some(Due {
            ready: row.get(0),
            suspect: row.get(1),
            expired: row.get(2),
            emitted: row.get(3),
            uncertain: row.get(4),
        })
    }
}

async fn serve(mut client: TcpStream, role: Role, shared: Arc<Shared>) {
    let wire = Wire {
        id: shared.connections.fetch_add(1, Ordering::SeqCst) + 1,
        role,
        dialogue: Mutex::new(Dialogue::new()),
        held: watch::Sender::new(false),
        lost: AtomicU64::new(0),
        reset: AtomicBool::new(false),
    };
    drop(client.set_nodelay(true));
    let mut traffic = shared.traffic.subscribe();
    shared.thawed(&wire).await;
    let Ok(mut server) = UnixStream::connect(&shared.socket).await else {
        return;
    };
    {
        let (from_client, mut to_client) = client.split();
        let mut from_client = BufReader::new(from_client);
        let (from_server, mut to_server) = server.split();
        let mut from_server = BufReader::new(from_server);
        let pass = async {
            startup(&mut from_client, &mut to_server, &shared, &wire).await?;
            tokio::select! {
                end = frontend(&mut from_client, &mut to_server, &shared, &wire) => end,
                end = backend(&mut from_server, &mut to_client, &shared, &wire) => end,
            }
        };
        tokio::select! {
            _ = pass => {}
            _ = traffic.wait_for(|traffic| wire.id <= traffic.closed) => {}
        }
    }
    if wire.reset.load(Ordering::SeqCst) {
        drop(client.set_zero_linger());
    }
}

async fn startup(
    from: &mut BufReader<ReadHalf<'_>>,
    to: &mut unix::WriteHalf<'_>,
    shared: &Shared,
    wire: &Wire,
) -> Option<()> {
    let frame = read_frame(from, 0).await?;
    let message = wire.dialogue.lock().unwrap().startup();
    match shared.number(wire.role, &message) {
        Some(Cut::Freeze) => shared.hit(wire, Cut::Freeze).await,
        Some(Cut::DropReply) => wire.lost.store(message.exchange, Ordering::SeqCst),
        Some(cut) => {
            shared.hit(wire, cut).await;
            return None;
        }
        None => {}
    }
    to.write_all(&frame).await.ok()
}

async fn frontend(
    from: &mut BufReader<ReadHalf<'_>>,
    to: &mut unix::WriteHalf<'_>,
    shared: &Shared,
    wire: &Wire,
) -> Option<()> {
    loop {
        let frame = read_frame(from, 1).await;
        shared.passes(wire).await;
        let frame = frame?;
        if frame[0] == b'X' {
            return to.write_all(&frame).await.ok();
        }
        let mut next = None;
        if Dialogue::wants_next(&frame)
            && let Ok(Ok(bytes)) = timeout(TOGETHER, from.fill_buf()).await
        {
            next = wire.dialogue.lock().unwrap().peeked(bytes);
        }
        let polls = wire.dialogue.lock().unwrap().polls(&frame, next.as_deref());
        let due = if polls && wire.role == Role::Worker {
            shared.due().await
        } else {
            None
        };
        let message = {
            let mut dialogue = wire.dialogue.lock().unwrap();
            dialogue.frontend(&frame, next.as_deref(), due)
        };
        match shared.number(wire.role, &message) {
            Some(Cut::Freeze) => shared.hit(wire, Cut::Freeze).await,
            // PostgreSQL gets the whole of the exchange and executes it.
            Some(Cut::DropReply) => wire.lost.store(message.exchange, Ordering::SeqCst),
            Some(cut) => {
                shared.hit(wire, cut).await;
                return None;
            }
            None => {}
        }
        to.write_all(&frame).await.ok()?;
    }
}

async fn backend(
    from: &mut BufReader<unix::ReadHalf<'_>>,
    to: &mut WriteHalf<'_>,
    shared: &Shared,
    wire: &Wire,
) -> Option<()> {
    loop {
        let frame = read_frame(from, 1).await;
        shared.passes(wire).await;
        let frame = frame?;
        let message = wire.dialogue.lock().unwrap().backend(&frame);
        let lost = wire.lost.load(Ordering::SeqCst);
        if lost != 0 && message.exchange >= lost {
            if message.ready {
                shared.hit(wire, Cut::DropReply).await;
                return None;
            }
            continue;
        }
        let hit = shared.number(wire.role, &message);
        match hit {
            Some(Cut::Freeze) => shared.hit(wire, Cut::Freeze).await,
            Some(cut @ (Cut::DropBefore | Cut::Reset)) => {
                shared.hit(wire, cut).await;
                return None;
            }
            Some(Cut::DropReply) | None => {}
        }
        to.write_all(&frame).await.ok()?;
        if let Some(cut @ Cut::DropReply) = hit {
            shared.hit(wire, cut).await;
            return None;
        }
    }
}
