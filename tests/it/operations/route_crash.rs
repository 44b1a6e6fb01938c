//! Routes of an application whose process is killed in mid-run: its key is taken over by rule.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncehook::{
    Answer, Delivered, External, HandlerError, HandlerKind, HandlerSpec, ProbeSchedule, Probed,
    Response, Submitted, Work, async_trait,
};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::support::{Gate, Receiver, Reply, TestDb, node};

use super::route::{Books, Site, handler, ledger, spec};
use super::wire::{Client, send};

const DATABASE: &str = "ONCEHOOK_TEST_ROUTE_DATABASE";
const PROVIDER: &str = "ONCEHOOK_TEST_ROUTE_PROVIDER";

/// Calls a provider, and books what it did.
#[derive(Debug)]
struct Calls {
    url: String,
}

#[async_trait]
impl External for Calls {
    async fn call(&self, effect_key: &str, event: &Delivered) -> Result<Answer, HandlerError> {
        let request = Submitted::of(event)?;
        let sent = node::client()
            .post(&self.url)
            .header("Idempotency-Key", effect_key)
            .body(request.body)
            .send()
            .await?;
        let status = sent.status();
        Ok(match status.as_u16() {
            201 => Answer::DoneWith("po_1".to_owned()),
            _ => Answer::Retry(None, format!("{status}")),
        })
    }

    async fn settle(
        &self,
        event: &Delivered,
        _: &Answer,
        work: &Work<'_>,
    ) -> Result<(), HandlerError> {
        let sql = "INSERT INTO app.payment (key, body) VALUES ($1, '{}')";
        work.execute(sql, &[&event.key]).await?;
        Ok(())
    }

    async fn respond(
        &self,
        _: &Delivered,
        _: &Answer,
        _: &Work<'_>,
    ) -> Result<Option<Response>, HandlerError> {
        Ok(Some(Response::json(201, "{ \"paid\" : true }")))
    }

    async fn probe(&self, effect_key: &str, _: &Delivered) -> Result<Probed, HandlerError> {
        let url = format!("{}/{effect_key}", self.url);
        let asked = node::client().get(url).send().await?;
        Ok(match asked.status().as_u16() {
            200 => Probed::Applied { resource: None },
            _ => Probed::Absent,
        })
    }
}

/// A route that is done in the transaction; its lease ends soon after its process.
fn transactional(books: Books) -> (HandlerSpec, Arc<Books>) {
    let books = Arc::new(books);
    let kind = HandlerKind::Function(Arc::clone(&books) as Arc<_>);
    let spec = HandlerSpec {
        timeout: Duration::from_mins(1),
        lease: Duration::from_secs(2),
        ..handler(kind, spec())
    };
    (spec, books)
}

/// A route that declares effects outside.
fn outside(url: String) -> HandlerSpec {
    let probes = ProbeSchedule::new(vec![Duration::from_secs(2), Duration::from_hours(1)]);
    HandlerSpec {
        timeout: Duration::from_secs(1),
        lease: Duration::from_secs(6),
        probes: probes.unwrap(),
        ..handler(HandlerKind::External(Arc::new(Calls { url })), spec())
    }
}

/// A route that never ends, and says when it runs.
fn held_in_mid_run() -> HandlerSpec {
    let (handler, books) = transactional(Books {
        gate: Some(Gate::closed()),
        ..Books::default()
    });
    tokio::spawn(async move {
        while books.runs.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        eprintln!("running");
    });
    handler
}

/// Not a test: run by those below as a process that can be killed.
#[tokio::test]
async fn site_process() {
    let Ok(url) = std::env::var(DATABASE) else {
        return;
    };
    let handler = if let Ok(provider) = std::env::var(PROVIDER) {
        // It never gets its answer.
        HandlerSpec {
            timeout: Duration::from_mins(2),
            lease: Duration::from_mins(3),
            ..outside(provider)
        }
    } else {
        held_in_mid_run()
    };
    let site = Site::start(&url, handler).await;
    eprintln!("listening {}", site.client.api);
    std::future::pending::<()>().await;
}

/// A process with the route.
struct Process {
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
    client: Client,
}

impl Process {
    async fn start(db: &TestDb, provider: Option<&str>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "operations::route_crash::site_process",
                "--nocapture",
            ])
            .env(DATABASE, &db.url)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(provider) = provider {
            command.env(PROVIDER, provider);
        }
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = until_said(&mut said, "listening ").await;
        Self {
            child,
            said,
            client: Client::at(address.parse().unwrap()),
        }
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// The rest of the line that begins so.
async fn until_said(said: &mut Lines<BufReader<ChildStderr>>, start: &str) -> String {
    let reading = async {
        while let Some(line) = said.next_line().await.unwrap() {
            if let Some(rest) = line.strip_prefix(start) {
                return rest.to_owned();
            }
        }
        panic!("the process ended before it said {start:?}");
    };
    let read = tokio::time::timeout(Duration::from_secs(30), reading).await;
    read.unwrap_or_else(|_| panic!("in vain: {start:?}"))
}

#[tokio::test]
async fn a_killed_process_leaves_its_key_to_the_next_that_runs_it_again() {
    let db = ledger().await;
    let mut process = Process::start(&db, None).await;
    let intent = process.client.intent("pay", "k", r#"{"amount": 5}"#);
    let lost = tokio::spawn(intent.send());
    until_said(&mut process.said, "running").await;
    process.kill().await;
    assert!(lost.await.unwrap().is_err());
    assert_eq!(db.count("app.payment").await, 0, "it went with its process");

    let (spec, books) = transactional(Books::default());
    let site = Site::start(&db.url, spec).await;
    // Content is judged before state.
    let other = site.client.submit("pay", "k", r#"{"amount": 6}"#).await;
    assert_eq!(other.status, 409, "{other:?}");
    let answer = site.client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(answer.replayed(), "another request has begun it");
    assert_eq!(books.runs.load(Ordering::SeqCst), 1);
    assert_eq!(db.count("app.payment").await, 1);
    db.verify().await;
    site.engine.shutdown().await;
}

#[tokio::test]
async fn a_process_killed_in_mid_call_leaves_an_uncertain_key_and_the_call_is_not_repeated() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.reply(Reply::status(201).behind(&gate));
    let db = ledger().await;
    let provider = receiver.url("/payouts");
    let process = Process::start(&db, Some(&provider)).await;
    let intent = process.client.intent("pay", "k", r#"{"amount": 5}"#);
    let lost = tokio::spawn(intent.send());
    receiver.until_requests(1).await;
    process.kill().await;
    assert!(lost.await.unwrap().is_err());
    // Its lease is three minutes long, which no test waits for.
    db.execute("UPDATE oncehook.delivery SET lease_until = now(), in_flight_until = now() + interval '6 seconds' WHERE state = 'leased'")
        .await;

    let site = Site::start(&db.url, outside(provider)).await;
    site.client.until_state("pay", "k", "uncertain").await;
    let told = send(
        site.client
            .intent("pay", "k", r#"{"amount": 5}"#)
            .header("Prefer", "respond-async"),
    )
    .await;
    assert_eq!(told.status, 202, "{told:?}");
    assert_eq!(told.json()["state"], "uncertain");
    assert!(told.header("Retry-After").is_some());
    let other = site.client.submit("pay", "k", r#"{"amount": 6}"#).await;
    assert_eq!(other.status, 409, "{other:?}");
    site.client.until_state("pay", "k", "completed").await;
    let answer = site.client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (201, "{ \"paid\" : true }")
    );
    assert!(answer.replayed());
    let methods: Vec<String> = receiver.requests().into_iter().map(|r| r.method).collect();
    assert_eq!(methods, ["POST", "GET"], "one call, one question");
    assert_eq!(db.count("app.payment").await, 1);
    db.verify().await;
    gate.open();
    site.engine.shutdown().await;
}
