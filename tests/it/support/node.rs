//! One running `oncehook serve`, as a child process that a test may treat badly.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode};
use serde_json::Value;

use super::signer::{self, STRIPE_SECRET};
use super::wait::{TIME_MAX, until, until_some};

/// Begins what is said of a node that does not come up.
pub(crate) const NOT_STARTED: &str = "the node does not start";

/// How a node is started, again and again.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// Program and arguments; configuration and flags are appended.
    pub(crate) command: Vec<String>,
    /// The configuration without `[listen]`.
    pub(crate) toml: String,
    /// Where its files lie.
    pub(crate) dir: PathBuf,
    /// Names its files.
    pub(crate) name: String,
    /// Further environment.
    pub(crate) env: Vec<(String, String)>,
}

/// A node: its process, its two addresses, its output. Killed when dropped, and when the test
/// process dies.
#[derive(Debug)]
pub(crate) struct Node {
    /// Webhooks and health.
    pub(crate) public: SocketAddr,
    /// Status, operations, metrics.
    pub(crate) api: SocketAddr,
    /// A client without redirects.
    pub(crate) http: reqwest::Client,
    launch: Launch,
    process: Process,
}

impl Node {
    /// Starts it on free ports and returns once it listens.
    pub(crate) async fn start(launch: Launch) -> Self {
        let started = Self::try_start(launch).await;
        started.unwrap_or_else(|said| panic!("{said}"))
    }

    /// As [`Node::start`], for a start that may fail: then its output.
    pub(crate) async fn try_start(launch: Launch) -> Result<Self, String> {
        let started = Process::try_start(&launch, free_address(), free_address()).await;
        started.map(|(process, public, api)| Self {
            public,
            api,
            http: client(),
            launch,
            process,
        })
    }

    /// Starts it again on the same addresses; kills it first if it runs.
    pub(crate) async fn restart(&mut self) {
        let restarted = self.try_restart().await;
        restarted.unwrap_or_else(|said| panic!("{said}"));
    }

    /// As [`Node::restart`], for a start that may fail: then its output.
    pub(crate) async fn try_restart(&mut self) -> Result<(), String> {
        self.kill9();
        let (process, ..) = Process::try_start(&self.launch, self.public, self.api).await?;
        self.process = process;
        Ok(())
    }

    /// Replaces the configuration (all but `[listen]`); [`Node::sighup`] makes it known.
    pub(crate) fn reconfigure(&mut self, toml: &str) {
        toml.clone_into(&mut self.launch.toml);
        write_config(&self.launch, self.public, self.api);
    }

    /// The configuration without `[listen]`, for [`Node::reconfigure`].
    pub(crate) fn toml(&self) -> &str {
        &self.launch.toml
    }

    /// The path of its configuration file, for other verbs of the command line.
    pub(crate) fn config(&self) -> PathBuf {
        config_path(&self.launch)
    }

    // Requests.

    /// The URL of a source.
    pub(crate) fn webhook_url(&self, source: &str) -> String {
        format!("http://{}/webhooks/{source}", self.public)
    }

    /// Posts a webhook with exactly these headers and bytes.
    pub(crate) async fn try_post(
        &self,
        source: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Result<Response, reqwest::Error> {
        let mut request = self.http.post(self.webhook_url(source));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(body.into()).send().await
    }

    /// As [`Node::try_post`], where an answer must come.
    pub(crate) async fn post(
        &self,
        source: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Response {
        self.try_post(source, headers, body).await.unwrap()
    }

    /// Posts an event signed as Stripe does now, under the secret of `AppBuilder::stripe`.
    pub(crate) async fn post_stripe(&self, source: &str, event: &Value) -> Response {
        self.try_post_stripe(source, event).await.unwrap()
    }

    /// As [`Node::post_stripe`], for a node that may be dying.
    pub(crate) async fn try_post_stripe(
        &self,
        source: &str,
        event: &Value,
    ) -> Result<Response, reqwest::Error> {
        let body = event.to_string();
        let signature = signer::stripe(STRIPE_SECRET, signer::now_s(), body.as_bytes());
        let headers = [
            ("Stripe-Signature", signature.as_str()),
            ("Content-Type", "application/json"),
        ];
        self.try_post(source, &headers, body).await
    }

    /// Gets JSON (or text, as a JSON string) from the API listener.
    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        let url = format!("http://{}{path}", self.api);
        json(self.http.get(url).send().await.unwrap()).await
    }

    /// Says a person's word about an event whose result is not known.
    pub(crate) async fn resolve(
        &self,
        source: &str,
        key: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        let key = encode(key);
        let url = format!("http://{}/v1/events/{source}/{key}/resolve", self.api);
        let request = self.http.post(url).header(CONTENT_TYPE, "application/json");
        json(request.body(body.to_string()).send().await.unwrap()).await
    }

    /// The timeline of an event; `None` when it is unknown.
    pub(crate) async fn timeline(&self, source: &str, key: &str) -> Option<Value> {
        let key = encode(key);
        let (status, timeline) = self.get(&format!("/v1/events/{source}/{key}")).await;
        match status {
            StatusCode::OK => Some(timeline),
            StatusCode::NOT_FOUND => None,
            _ => panic!("{status}: {timeline}"),
        }
    }

    /// Waits for the outcome of an event at a handler; the newest run's.
    pub(crate) async fn until_outcome(&self, source: &str, key: &str, handler: &str) -> Value {
        until_some(
            &format!("outcome of {source} {key} at {handler}"),
            async || {
                let timeline = self.timeline(source, key).await?;
                let outcomes = timeline["outcomes"].as_array()?;
                outcomes
                    .iter()
                    .filter(|outcome| outcome["handler"] == handler)
                    .max_by_key(|outcome| outcome["run"].as_i64())
                    .cloned()
            },
        )
        .await
    }

    // Treatment.

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Whether its process runs, perhaps stopped.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.process.child.try_wait(), Ok(None))
    }

    /// SIGKILL; returns when it is gone.
    pub(crate) fn kill9(&mut self) {
        self.process.kill();
    }

    /// Stops its world; it stays connected.
    pub(crate) fn sigstop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets a stopped one go on.
    pub(crate) fn sigcont(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Asks it to end.
    pub(crate) fn sigterm(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Asks it to read its configuration again.
    pub(crate) fn sighup(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    /// SIGTERM, then waits for its end.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        self.sigterm();
        self.exit().await
    }

    /// Waits for its end.
    pub(crate) async fn exit(&mut self) -> ExitStatus {
        let child = &mut self.process.child;
        until_some("the node exits", async || child.try_wait().unwrap()).await
    }

    /// Everything it printed so far, over all its starts; standard output first.
    pub(crate) fn output(&self) -> String {
        output(&self.launch)
    }

    /// Waits until its output contains a text.
    pub(crate) async fn until_logged(&self, text: &str) {
        until(&format!("the node logs {text:?}"), async || {
            self.output().contains(text)
        })
        .await;
    }
}

/// The child and the shell that kills it when this process dies without doing so.
#[derive(Debug)]
struct Process {
    child: Child,
    watcher: Child,
    leash: Option<ChildStdin>,
}

impl Process {
    async fn try_start(
        launch: &Launch,
        public: SocketAddr,
        api: SocketAddr,
    ) -> Result<(Self, SocketAddr, SocketAddr), String> {
        let config = write_config(launch, public, api);
        // Each start has its own standard output, since its first line announces the addresses.
        let stdout = stdout_path(launch);
        let append = File::options()
            .create(true)
            .append(true)
            .open(stderr_path(launch));
        let child = Command::new(&launch.command[0])
            .args(&launch.command[1..])
            .arg("--config")
            .arg(config)
            .arg("--announce")
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).unwrap())
            .stderr(append.unwrap())
            .spawn()
            .unwrap();
        let mut process = Self::watched(child);
        let end = Instant::now() + TIME_MAX;
        loop {
            let said = fs::read_to_string(&stdout).unwrap();
            if let Some((line, _)) = said.split_once('\n') {
                let address = |name: &str| {
                    serde_json::from_str::<Value>(line)
                        .ok()
                        .and_then(|value| value[name].as_str()?.parse().ok())
                        .unwrap_or_else(|| panic!("no announcement: {line}"))
                };
                return Ok((process, address("public"), address("api")));
            }
            let exited = process.child.try_wait().unwrap();
            if exited.is_some() || Instant::now() > end {
                process.kill();
                let said = output(launch);
                return Err(format!("{NOT_STARTED}: {exited:?}\n{said}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn watched(child: Child) -> Self {
        let mut watcher = Command::new("/bin/sh")
            .args(["-c", "read -r _ || kill -KILL \"$1\"", "watcher"])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let leash = watcher.stdin.take();
        Self {
            child,
            watcher,
            leash,
        }
    }

    fn kill(&mut self) {
        // The watcher goes first, while the process id is still ours.
        if let Some(mut leash) = self.leash.take() {
            drop(leash.write_all(b"dismissed\n"));
        }
        drop(self.watcher.wait());
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn json(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(text.into()))
}

fn config_path(launch: &Launch) -> PathBuf {
    launch.dir.join(format!("{}.toml", launch.name))
}

fn stdout_path(launch: &Launch) -> PathBuf {
    launch.dir.join(format!("{}.out", launch.name))
}

fn stderr_path(launch: &Launch) -> PathBuf {
    launch.dir.join(format!("{}.err", launch.name))
}

fn output(launch: &Launch) -> String {
    [stdout_path(launch), stderr_path(launch)]
        .iter()
        .map(|path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned())
        .collect()
}

/// Replaced as a whole, so that a node that reads it now sees the old or the new.
fn write_config(launch: &Launch, public: SocketAddr, api: SocketAddr) -> PathBuf {
    let path = config_path(launch);
    let fresh = path.with_extension("new");
    let listen = format!("[listen]\npublic = \"{public}\"\napi = \"{api}\"\n\n");
    fs::write(&fresh, listen + &launch.toml).unwrap();
    fs::rename(&fresh, &path).unwrap();
    path
}

/// An address that is still free when the node comes back to it. Ports of the ephemeral range are
/// not: while it is down, any outgoing connection on the machine may be given its port.
pub(crate) fn free_address() -> SocketAddr {
    const FIRST: u32 = 10_240;
    const PORTS: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes of other tests begin elsewhere.
    let begin = std::process::id().wrapping_mul(7_919) % PORTS;
    for _ in 0..PORTS {
        let next = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + next).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port");
}

/// SIGKILL to a process; it may be gone already.
pub(crate) fn kill9(pid: u32) {
    let gone = kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL);
    gone.ok();
}

/// A client that follows no redirects and waits a minute.
pub(crate) fn client() -> reqwest::Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // Someone else in this process may have been first, with the same one.
        drop(rustls::crypto::ring::default_provider().install_default());
    });
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_mins(1))
        .build()
        .unwrap()
}

/// Percent-encodes a path segment.
pub(crate) fn encode(segment: &str) -> String {
    let mut encoded = String::new();
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push_str(&hex::encode_upper([byte]));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stand-in that announces addresses, counts its starts and obeys SIGTERM.
    fn stand_in(dir: &tempfile::TempDir) -> Launch {
        let script = r#"echo "started $2" >&2
            trap 'exit 7' TERM
            trap 'cat "$2" >&2' HUP
            echo '{"public":"127.0.0.1:1","api":"127.0.0.1:2"}'
            while :; do sleep 0.05; done"#;
        Launch {
            command: ["/bin/sh", "-c", script, "node"]
                .map(str::to_owned)
                .to_vec(),
            toml: "[database]\n".to_owned(),
            dir: dir.path().to_owned(),
            name: "node-1".to_owned(),
            env: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_node_is_started_treated_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut node = Node::start(stand_in(&dir)).await;
        assert_eq!((node.public.port(), node.api.port()), (1, 2));
        node.reconfigure("# another\n[database]\n");
        node.sighup();
        node.until_logged("# another").await;
        node.sigstop();
        node.sigcont();
        assert_eq!(node.stop().await.code(), Some(7));
        node.restart().await;
        assert_eq!(node.output().matches("started ").count(), 2);
        let pid = Pid::from_raw(node.pid().try_into().unwrap());
        drop(node);
        assert!(kill(pid, None).is_err(), "it ends with its owner");
    }
}
