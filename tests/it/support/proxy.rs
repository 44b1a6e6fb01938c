//! Between a node and PostgreSQL: cuts, freezes, delays, refuses, also at a chosen statement.
//!
//! It reads the frames of the protocol, so that a rule can say "when COMMIT passes" and mean the
//! statement and not a network packet. A prepared statement counts when it is executed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::wait::until;

/// What happens, once, when a statement passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The connection is cut and the statement never reaches PostgreSQL.
    CutBefore,
    /// PostgreSQL executes it, then the connection is cut and the answer lost.
    CutAfter,
    /// All traffic stops before it, until [`PgProxy::thaw`].
    FreezeBefore,
    /// PostgreSQL executes it, then all traffic stops, its answer included, until [`PgProxy::thaw`].
    FreezeAfter,
    /// It is held back for a while.
    Delay(Duration),
}

#[derive(Debug)]
struct Rule {
    /// What the statement before it on the same connection must contain.
    after: String,
    needle: String,
    action: Action,
}

#[derive(Debug, Clone, Copy, Default)]
struct Traffic {
    refuse: bool,
    frozen: bool,
    delay: Duration,
    /// Connections of an older generation are cut.
    generation: u64,
}

#[derive(Debug)]
struct Shared {
    /// Where new connections lead.
    socket: Mutex<PathBuf>,
    traffic: watch::Sender<Traffic>,
    rules: Mutex<Vec<Rule>>,
    fired: watch::Sender<usize>,
    opened: watch::Sender<usize>,
}

/// The proxy; it and its connections end when it is dropped.
#[derive(Debug)]
pub(crate) struct PgProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl PgProxy {
    /// In front of the cluster of a URL (`..?host=/socket/folder`).
    pub(crate) async fn start(url: &str) -> Self {
        let socket = Mutex::new(socket(url));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            socket,
            traffic: watch::Sender::new(Traffic::default()),
            rules: Mutex::new(Vec::new()),
            fired: watch::Sender::new(0),
            opened: watch::Sender::new(0),
        });
        let known = Arc::clone(&shared);
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, Arc::clone(&known)));
            }
        });
        Self {
            address,
            shared,
            server,
        }
    }

    /// The address of the proxy.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Leads new connections to the cluster of another URL. Those that are open stay where they
    /// are until [`PgProxy::cut`].
    pub(crate) fn retarget(&self, url: &str) {
        *self.shared.socket.lock().unwrap() = socket(url);
    }

    /// The URL of a database through the proxy.
    pub(crate) fn url(&self, database: &str) -> String {
        format!(
            "postgresql://postgres@{}/{database}?sslmode=disable",
            self.address
        )
    }

    /// Does `action` once, at the next statement whose text contains `needle` (in any case).
    pub(crate) fn arm(&self, needle: &str, action: Action) {
        self.arm_after("", needle, action);
    }

    /// As [`PgProxy::arm`], but only right behind a statement that contains `after` on the same
    /// connection: the COMMIT of an ingest and not that of whoever commits next.
    pub(crate) fn arm_after(&self, after: &str, needle: &str, action: Action) {
        self.shared.rules.lock().unwrap().push(Rule {
            after: after.to_ascii_lowercase(),
            needle: needle.to_ascii_lowercase(),
            action,
        });
    }

    /// Forgets what was armed and has not taken place.
    pub(crate) fn disarm(&self) {
        self.shared.rules.lock().unwrap().clear();
    }

    /// Waits until so many armed actions have taken place; a `CutAfter` when it was answered.
    pub(crate) async fn until_fired(&self, count: usize) {
        until(&format!("{count} armed actions take place"), async || {
            *self.shared.fired.borrow() >= count
        })
        .await;
    }

    /// How many armed actions have taken place.
    pub(crate) fn fired(&self) -> usize {
        *self.shared.fired.borrow()
    }

    /// How many connections were opened so far.
    pub(crate) fn connections(&self) -> usize {
        *self.shared.opened.borrow()
    }

    /// Cuts every connection; new ones are served.
    pub(crate) fn cut(&self) {
        self.traffic(|traffic| traffic.generation += 1);
    }

    /// Cuts every connection and hangs up on new ones.
    pub(crate) fn refuse(&self) {
        self.traffic(|traffic| {
            traffic.generation += 1;
            traffic.refuse = true;
        });
    }

    /// Serves again after [`PgProxy::refuse`].
    pub(crate) fn admit(&self) {
        self.traffic(|traffic| traffic.refuse = false);
    }

    /// Connections stay open, also new ones, but nothing passes.
    pub(crate) fn freeze(&self) {
        self.traffic(|traffic| traffic.frozen = true);
    }

    /// Everything held back passes.
    pub(crate) fn thaw(&self) {
        self.traffic(|traffic| traffic.frozen = false);
    }

    /// Every message takes so much longer.
    pub(crate) fn delay(&self, delay: Duration) {
        self.traffic(|traffic| traffic.delay = delay);
    }

    fn traffic(&self, change: impl FnOnce(&mut Traffic)) {
        self.shared.traffic.send_modify(change);
    }
}

impl Drop for PgProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    /// Waits while traffic is frozen, then for the delay.
    async fn pass(&self) {
        let mut traffic = self.traffic.subscribe();
        drop(traffic.wait_for(|traffic| !traffic.frozen).await);
        let delay = self.traffic.borrow().delay;
        // Even a sleep of nothing lasts until the timer's next tick, a millisecond per frame.
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    fn take_rule(&self, before: &str, statement: &str) -> Option<Rule> {
        let mut rules = self.rules.lock().unwrap();
        let index = rules.iter().position(|rule| {
            let hit = match rule.needle.as_str() {
                // Not the "read committed" of a BEGIN.
                "commit" => statement.trim() == "commit" || statement.starts_with("commit;"),
                needle => statement.contains(needle),
            };
            hit && before.contains(&rule.after)
        })?;
        Some(rules.remove(index))
    }

    fn fire(&self) {
        self.fired.send_modify(|count| *count += 1);
    }
}

/// The socket of a URL (`..?host=/socket/folder`).
fn socket(url: &str) -> PathBuf {
    let config: tokio_postgres::Config = url.parse().unwrap();
    let [tokio_postgres::config::Host::Unix(dir)] = config.get_hosts() else {
        panic!("not a Unix socket: {url}");
    };
    dir.join(".s.PGSQL.5432")
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut traffic = shared.traffic.subscribe();
    let now = *traffic.borrow_and_update();
    if now.refuse {
        return;
    }
    shared.opened.send_modify(|count| *count += 1);
    drop(client.set_nodelay(true));
    let socket = shared.socket.lock().unwrap().clone();
    let Ok(server) = UnixStream::connect(socket).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let lost = Lost::default();
    tokio::select! {
        _ = frontend(from_client, to_server, &to_client, &shared, &lost) => {}
        _ = backend(from_server, &to_client, &shared, &lost) => {}
        _ = traffic.wait_for(|traffic| traffic.generation != now.generation) => {}
    }
}

/// The answer of a connection that is to be lost or held back. Statements may be sent back to back, so it is
/// told by its number.
#[derive(Debug, Default)]
struct Lost {
    /// Its "ready for query", counted from the first one, which ends the start-up; 0: none.
    answer: AtomicUsize,
    /// What ends it is the word that a COMMIT was done, and not merely "ready".
    commit: AtomicBool,
    /// The same of one that is to be held back.
    held: AtomicUsize,
}

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

async fn frontend(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    back: &tokio::net::tcp::OwnedWriteHalf,
    shared: &Shared,
    lost: &Lost,
) -> Option<()> {
    // The first messages have no type byte. We answer for encryption ourselves: not here.
    loop {
        let frame = read_frame(&mut from, 0).await?;
        shared.pass().await;
        let code = u32::from_be_bytes(frame.get(4..8)?.try_into().ok()?);
        if code == SSL_REQUEST || code == GSS_REQUEST {
            back.writable().await.ok()?;
            back.try_write(b"N").ok()?;
            continue;
        }
        to.write_all(&frame).await.ok()?;
        break;
    }
    let mut prepared = HashMap::new();
    let mut before = String::new();
    // Each of these is answered by one "ready for query".
    let mut asked = 1;
    loop {
        let frame = read_frame(&mut from, 1).await?;
        shared.pass().await;
        let rule = executed(&frame, &mut prepared).and_then(|statement| {
            let statement = statement.to_ascii_lowercase();
            let rule = shared.take_rule(&before, &statement);
            before = statement;
            rule
        });
        match rule {
            Some(Rule {
                action: Action::CutBefore,
                ..
            }) => {
                shared.fire();
                return None;
            }
            Some(Rule {
                action: Action::CutAfter,
                needle,
                ..
            }) => {
                lost.commit.store(needle == "commit", Ordering::SeqCst);
                lost.answer.store(asked + 1, Ordering::SeqCst);
            }
            Some(Rule {
                action: Action::FreezeAfter,
                ..
            }) => lost.held.store(asked + 1, Ordering::SeqCst),
            Some(Rule {
                action: Action::FreezeBefore,
                ..
            }) => {
                shared.traffic.send_modify(|traffic| traffic.frozen = true);
                shared.fire();
                shared.pass().await;
            }
            Some(Rule {
                action: Action::Delay(delay),
                ..
            }) => {
                shared.fire();
                tokio::time::sleep(delay).await;
            }
            None => {}
        }
        asked += usize::from(matches!(frame.first()?, b'Q' | b'S'));
        to.write_all(&frame).await.ok()?;
    }
}

async fn backend(
    mut from: impl AsyncRead + Unpin,
    to: &tokio::net::tcp::OwnedWriteHalf,
    shared: &Shared,
    lost: &Lost,
) -> Option<()> {
    let mut answered = 0;
    loop {
        let frame = read_frame(&mut from, 1).await?;
        let ready = *frame.first()? == b'Z';
        answered += usize::from(ready);
        if lost.answer.load(Ordering::SeqCst) == answered + usize::from(!ready) {
            let done = match frame.first()? {
                b'C' if lost.commit.load(Ordering::SeqCst) => frame.get(5..)? == b"COMMIT\0",
                b'Z' => true,
                _ => false,
            };
            if done {
                shared.fire();
                return None;
            }
            continue;
        }
        if ready && lost.held.load(Ordering::SeqCst) == answered {
            shared.traffic.send_modify(|traffic| traffic.frozen = true);
            shared.fire();
        }
        shared.pass().await;
        write_all(to, &frame).await?;
    }
}

/// Both directions write to the client: answers, and our own word on encryption.
async fn write_all(to: &tokio::net::tcp::OwnedWriteHalf, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        to.writable().await.ok()?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// A whole frame: `type_bytes` of type, four bytes of length, the rest.
pub(crate) async fn read_frame(
    from: &mut (impl AsyncRead + Unpin),
    type_bytes: usize,
) -> Option<Vec<u8>> {
    let mut frame = vec![0; type_bytes + 4];
    from.read_exact(&mut frame).await.ok()?;
    let length = u32::from_be_bytes(frame.get(type_bytes..)?.try_into().ok()?);
    frame.resize(type_bytes + usize::try_from(length).ok()?, 0);
    from.read_exact(frame.get_mut(type_bytes + 4..)?)
        .await
        .ok()?;
    Some(frame)
}

/// The text of the statement that this frame executes.
pub(crate) fn executed(frame: &[u8], prepared: &mut HashMap<String, String>) -> Option<String> {
    let mut texts = frame
        .get(5..)?
        .split(|byte| *byte == 0)
        .map(|text| String::from_utf8_lossy(text).into_owned());
    match frame.first()? {
        b'Q' => texts.next(),
        b'P' => {
            prepared.insert(texts.next()?, texts.next()?);
            None
        }
        // Bind: the portal's name, then the statement's.
        b'B' => prepared.get(&texts.nth(1)?).cloned(),
        _ => None,
    }
}
