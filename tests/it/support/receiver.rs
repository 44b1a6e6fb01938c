//! The service behind an `http` handler: records what it gets, answers as told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::raw::content_length;
use super::wait::{until, until_some};

/// One answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    delay: Duration,
    gate: Option<Gate>,
    cut: Option<Cut>,
}

#[derive(Debug, Clone, Copy)]
enum Cut {
    BeforeAnswer,
    WithinAnswer,
}

impl Reply {
    /// An answer without a body.
    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: String::new(),
            delay: Duration::ZERO,
            gate: None,
            cut: None,
        }
    }

    /// The request is read, then the connection is closed without a byte of answer.
    pub(crate) fn cut() -> Self {
        Self {
            cut: Some(Cut::BeforeAnswer),
            ..Self::status(200)
        }
    }

    /// The connection is closed in the middle of the answer's head.
    pub(crate) fn cut_within() -> Self {
        Self {
            cut: Some(Cut::WithinAnswer),
            ..Self::status(200)
        }
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    pub(crate) fn body(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }

    /// Waits before the answer (or the cut).
    pub(crate) fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Waits for the gate before the answer (or the cut).
    pub(crate) fn behind(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }
}

/// Holds answers back until it is opened, once and for all.
#[derive(Debug, Clone)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    /// A closed gate.
    pub(crate) fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Lets everybody through.
    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub(crate) async fn passed(&self) {
        let mut open = self.0.subscribe();
        drop(open.wait_for(|open| *open).await);
    }
}

/// One request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// Method.
    pub(crate) method: String,
    /// Path with query.
    pub(crate) path: String,
    /// Headers in order.
    pub(crate) headers: Vec<(String, String)>,
    /// Body.
    pub(crate) body: Vec<u8>,
    /// When it had arrived as a whole.
    pub(crate) at: Instant,
}

impl Received {
    /// The first header of that name, in any case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// A reply that is being worked out.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Reply> + Send>>;

#[derive(Debug)]
struct Script {
    received: Vec<Received>,
    next: VecDeque<Reply>,
    always: Reply,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            received: Vec::new(),
            next: VecDeque::new(),
            always: Reply::status(200),
        }
    }
}

impl Script {
    fn reply(&mut self, received: Received) -> Reply {
        self.received.push(received);
        let next = self.next.pop_front();
        next.unwrap_or_else(|| self.always.clone())
    }
}

/// An HTTP server on its own port; answers 200 unless told otherwise.
#[derive(Debug)]
pub(crate) struct Receiver {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    server: JoinHandle<()>,
}

impl Receiver {
    /// Starts one.
    pub(crate) async fn start() -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts one on an address that was called before, such as one of `free_address`.
    pub(crate) async fn start_on(address: SocketAddr) -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let known = Arc::clone(&script);
        let scripted = move |received| {
            let reply = known.lock().unwrap().reply(received);
            Box::pin(std::future::ready(reply)) as Answer
        };
        Self::serving(address, script, Arc::new(scripted)).await
    }

    /// Starts one that works every answer out, and keeps no requests.
    pub(crate) async fn answering(
        address: SocketAddr,
        answer: impl Fn(Received) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::serving(address, Arc::default(), Arc::new(answer)).await
    }

    async fn serving(
        address: SocketAddr,
        script: Arc<Mutex<Script>>,
        answer: Arc<dyn Fn(Received) -> Answer + Send + Sync>,
    ) -> Self {
        // A predecessor that was dropped a moment ago may still listen.
        let listener = until_some("the address is free", async || {
            TcpListener::bind(address).await.ok()
        })
        .await;
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            // Its connections end with it.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&answer)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            script,
            server,
        }
    }

    /// Its URL with a path such as `/hooks`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Queues the answer to one request.
    pub(crate) fn reply(&self, reply: Reply) {
        self.script.lock().unwrap().next.push_back(reply);
    }

    /// The answer to every request for which none is queued.
    pub(crate) fn always(&self, reply: Reply) {
        self.script.lock().unwrap().always = reply;
    }

    /// What came so far.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.script.lock().unwrap().received.clone()
    }

    /// Waits until at least so many requests have come; returns all.
    pub(crate) async fn until_requests(&self, count: usize) -> Vec<Received> {
        until(&format!("{count} requests come"), async || {
            self.script.lock().unwrap().received.len() >= count
        })
        .await;
        self.requests()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(mut stream: TcpStream, answer: Arc<dyn Fn(Received) -> Answer + Send + Sync>) {
    while let Some(received) = read_request(&mut stream).await {
        let reply = answer(received).await;
        tokio::time::sleep(reply.delay).await;
        if let Some(gate) = &reply.gate {
            gate.passed().await;
        }
        match reply.cut {
            Some(Cut::BeforeAnswer) => return,
            Some(Cut::WithinAnswer) => {
                drop(stream.write_all(b"HTTP/1.1 200 OK\r\nConte").await);
                return;
            }
            None => {}
        }
        let mut answer = format!(
            "HTTP/1.1 {} Told\r\nContent-Length: {}\r\n",
            reply.status,
            reply.body.len()
        );
        for (name, value) in &reply.headers {
            answer.extend([name, ": ", value, "\r\n"]);
        }
        answer.extend(["\r\n", &reply.body]);
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Received> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut body = vec![0; content_length(&head)];
    stream.read_exact(&mut body).await.ok()?;
    Some(Received {
        method,
        path,
        headers,
        body,
        at: Instant::now(),
    })
}
