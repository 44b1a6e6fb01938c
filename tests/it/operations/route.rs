//! Routes of an application's own: the promises of the wire, kept in the application's process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_web::{App, HttpRequest, HttpServer, web};
use oncehook::domain::RetryPolicy;
use oncehook::{
    Answer, Delivered, Engine, EngineConfig, Function, HandlerError, HandlerKind, HandlerSpec,
    Limits, OnFailure, OperationSpec, Operations, Profile, Response, Settings, Store, Submitted,
    Work, async_trait,
};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::Value;

use crate::support::{Gate, RawHttp, TestDb, inbox, until};

use super::wire::{Answer as Got, Client, LEDGER, send};
use super::{wire_answers, wire_crowd, wire_refused};

/// What goes wrong in a run, behind what it has written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    Panics,
    AnswersWhatCannotBeStored,
}

/// Books as `app.pay` of the wire's tests does.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) gate: Option<Gate>,
    pub(super) faults: Mutex<VecDeque<Fault>>,
    pub(super) runs: AtomicUsize,
    pub(super) seen: Mutex<Vec<String>>,
}

impl Books {
    fn with(faults: impl Into<VecDeque<Fault>>) -> Self {
        Self {
            faults: Mutex::new(faults.into()),
            ..Self::default()
        }
    }
}

#[async_trait]
impl Function for Books {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let request = Submitted::of(event)?;
        let seen = format!(
            "{} {} {:?} {} {}",
            request.client,
            request.key,
            request.path,
            request.query,
            String::from_utf8_lossy(&request.body)
        );
        self.seen.lock().unwrap().push(seen);
        let amount = request.json::<Value>()?["amount"].to_string();
        if amount == "0" {
            let said = Response::json(422, "{\"error\": \"nothing to pay\"}");
            return Ok(Answer::Failed("nothing to pay".to_owned()).with_response(said));
        }
        if amount.starts_with('-') {
            return Ok(Answer::Permanent("no".to_owned()));
        }
        let row = work
            .query_opt(
                "INSERT INTO app.payment (key, body) VALUES ($1, '{}') RETURNING no",
                &[&event.key],
            )
            .await?;
        let no: i32 = row.unwrap().get(0);
        if let Some(gate) = &self.gate {
            gate.passed().await;
        }
        let fault = self.faults.lock().unwrap().pop_front();
        let status = match fault {
            Some(Fault::Panics) => panic!("a bug of the route"),
            Some(Fault::AnswersWhatCannotBeStored) => 199,
            None => 201,
        };
        let said = Response::json(status, format!("{{ \"payment\" : {no} }}"))
            .with_header("Location", format!("/payments/{no}"));
        Ok(Answer::DoneWith(format!("pay_{no}")).with_response(said))
    }
}

/// The token says who it is; without one: `local`, as on the API listener.
fn client(request: &HttpRequest) -> Option<String> {
    let Some(shown) = request.headers().get("Authorization") else {
        return Some("local".to_owned());
    };
    let name = shown.to_str().ok()?.strip_prefix("Bearer ")?;
    (name != "nobody").then(|| name.to_owned())
}

/// An application with a route.
pub(super) struct Site {
    pub(super) client: Client,
    pub(super) engine: Engine,
}

pub(super) fn spec() -> OperationSpec {
    OperationSpec {
        wait: Duration::from_secs(20),
        ..OperationSpec::default()
    }
}

/// The handler of the route, which tries again at once.
pub(super) fn handler(kind: HandlerKind, spec: OperationSpec) -> HandlerSpec {
    inbox::quick(HandlerSpec::operation("pay", kind, spec))
}

impl Site {
    pub(super) async fn start(url: &str, handler: HandlerSpec) -> Self {
        let config = EngineConfig {
            handlers: vec![handler],
            dispatch: Some(inbox::dispatch()),
            ..EngineConfig::default()
        };
        let store = Store::new(Settings::parse(url).unwrap(), 4).unwrap();
        let engine = Engine::start(store, config).await.unwrap();
        let limits = Limits {
            body_bytes: 1_024,
            ..Limits::default()
        };
        let operations = Operations::new(engine.clone(), limits, client);
        let server = HttpServer::new(move || {
            let own = web::scope("/shop/{account}").route("/pay", operations.route("pay"));
            App::new()
                .route("/v1/operations/pay", operations.route("pay"))
                .route("/none", operations.route("no-such-operation"))
                .service(own)
                .service(web::scope("/v1").service(operations.statuses("/operations")))
        })
        .workers(2)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
        let client = Client::at(server.addrs()[0]);
        tokio::spawn(server.run());
        Self { client, engine }
    }

    /// A fresh database with the ledger, and a site that books there.
    async fn fresh(books: Books, spec: OperationSpec) -> (Self, TestDb, Arc<Books>) {
        let db = ledger().await;
        let books = Arc::new(books);
        let kind = HandlerKind::Function(Arc::clone(&books) as Arc<dyn Function>);
        (Self::start(&db.url, handler(kind, spec)).await, db, books)
    }

    async fn post(&self, path: &str, key: &str, body: &str) -> Got {
        let request = self.client.request(Method::POST, path);
        let request = request.header("Idempotency-Key", key);
        let request = request.header(CONTENT_TYPE, "application/json");
        send(request.body(body.to_owned())).await
    }
}

pub(super) async fn ledger() -> TestDb {
    let db = TestDb::new().await;
    db.client().await.batch_execute(LEDGER).await.unwrap();
    db
}

#[tokio::test]
async fn a_retry_gets_the_same_bytes_as_over_the_wire() {
    let volatile = ["/body/client_time", "/body/items/*/trace"].map(str::to_owned);
    let spec = OperationSpec {
        volatile: volatile.to_vec(),
        ..spec()
    };
    let (site, db, books) = Site::fresh(Books::default(), spec).await;
    wire_answers::same_bytes(&site.client, &db).await;
    assert_eq!(books.runs.load(Ordering::SeqCst), 1);
    // Byte by byte: the white space of the route's own.
    let again = site
        .client
        .submit("pay", "k1", r#"{"amount": 5, "currency": "EUR"}"#);
    assert_eq!(again.await.body, "{ \"payment\" : 1 }");
    site.engine.shutdown().await;
}

#[tokio::test]
async fn numbers_are_compared_as_over_the_wire() {
    let (site, db, _) = Site::fresh(Books::default(), spec()).await;
    wire_answers::numbers_as_written(&site.client, &db).await;
    site.engine.shutdown().await;
}

#[tokio::test]
async fn noes_and_failures_are_as_over_the_wire() {
    let (site, _db, books) = Site::fresh(Books::default(), spec()).await;
    wire_answers::business_no(&site.client).await;
    // A failure without effect begins anew: here the same again.
    for runs in [2, 3] {
        let dead = site.client.submit("pay", "dead", r#"{"amount": -1}"#).await;
        assert_eq!(dead.status, 500, "{dead:?}");
        assert!(dead.is_problem("operation-failed"), "{dead:?}");
        assert_eq!(books.runs.load(Ordering::SeqCst), runs);
    }
    site.engine.shutdown().await;

    let keep = OperationSpec {
        on_failure: OnFailure::Keep,
        ..spec()
    };
    let (site, db, books) = Site::fresh(Books::default(), keep).await;
    wire_answers::failure_kept(&site.client, &db).await;
    assert_eq!(books.runs.load(Ordering::SeqCst), 1);
    site.engine.shutdown().await;
}

#[tokio::test]
async fn what_is_refused_is_refused_as_over_the_wire() {
    let (site, db, _) = Site::fresh(Books::default(), spec()).await;
    let none = site.post("/none", "k", "{}").await;
    assert!(none.is_problem("unknown-operation"), "{none:?}");
    // As deep as a body may be: one level more would not be compared.
    let deep = format!("{}1{}", "[".repeat(128), "]".repeat(128));
    let deep = site.client.submit("pay", "deep", deep).await;
    assert!(deep.is_problem("body-not-json"), "{deep:?}");
    // Nobody gets out of the body.
    let out = r#"{"amount": 1}, "path": {"account": "1"}, "x": {}"#;
    let out = site.client.submit("pay", "out", out).await;
    assert!(out.is_problem("body-not-json"), "{out:?}");
    wire_refused::refused_and_free(&site.client, &db).await;
    site.engine.shutdown().await;
}

#[tokio::test]
async fn the_same_key_at_once_takes_effect_once_over_two_engines() {
    let (site, db, _) = Site::fresh(Books::default(), spec()).await;
    let kind = HandlerKind::Function(Arc::new(Books::default()));
    let other = Site::start(&db.url, handler(kind, spec())).await;
    wire_crowd::at_once(&[site.client.clone(), other.client.clone()], &db).await;
    site.engine.shutdown().await;
    other.engine.shutdown().await;
}

#[tokio::test]
async fn path_and_query_belong_to_the_intent() {
    let (site, db, books) = Site::fresh(Books::default(), spec()).await;
    let first = site
        .post("/shop/a%2Fb/pay?x=1&y", "k", "{ \"amount\": 5}")
        .await;
    assert_eq!(first.status, 201, "{first:?}");
    let again = site
        .post("/shop/a%2Fb/pay?x=1&y", "k", "{\"amount\":5}")
        .await;
    assert_eq!(again.kept(), first.kept());
    assert!(again.replayed());
    for path in [
        "/shop/b/pay?x=1&y",
        "/shop/a%2Fb/pay?x=2",
        "/shop/a%2Fb/pay",
    ] {
        let other = site.post(path, "k", "{\"amount\":5}").await;
        assert_eq!(other.status, 409, "{path}: {other:?}");
        assert!(other.is_problem("idempotency-key-mismatch"), "{other:?}");
    }
    let odd = site.post("/shop/%FF/pay", "odd", "{\"amount\":5}").await;
    assert_eq!(odd.status, 400, "{odd:?}");
    assert!(odd.is_problem("path-not-text"), "{odd:?}");
    let seen = books.seen.lock().unwrap().clone();
    let expected = "local k {\"account\": \"a/b\"} x=1&y { \"amount\": 5}";
    assert_eq!(seen, [expected]);
    assert_eq!(db.count("app.payment").await, 1);
    assert_eq!(db.count("conflict").await, 3);
    db.verify().await;
    site.engine.shutdown().await;
}

#[tokio::test]
async fn a_key_belongs_to_the_client_that_the_application_names() {
    let (site, db, _) = Site::fresh(Books::default(), spec()).await;
    let nobody = site.client.with_token("nobody");
    let refused = nobody.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(refused.status, 401, "{refused:?}");
    assert!(refused.is_problem("unauthorized"), "{refused:?}");
    assert_eq!(db.count("event_key").await, 0);
    let (shop, desk) = (
        site.client.with_token("shop"),
        site.client.with_token("desk"),
    );
    let first = shop.submit("pay", "k", r#"{"amount": 5}"#).await;
    let other = desk.submit("pay", "k", r#"{"amount": 6}"#).await;
    assert_eq!((first.status, other.status), (201, 201));
    assert_ne!(first.body, other.body);
    // Who may not ask any more is told nothing, stored or not.
    let path = "/v1/operations/pay/keys/k";
    assert_eq!(
        nobody.submit("pay", "k", r#"{"amount": 5}"#).await.status,
        401
    );
    assert_eq!(nobody.get(path).await.status, 401);
    assert_eq!(site.client.get(path).await.status, 404);
    let status = shop.get(path).await.json();
    assert_eq!(status["client"], "shop");
    assert_eq!(status["response"]["body"], first.body);
    assert_eq!(db.count("app.payment").await, 2);
    site.engine.shutdown().await;
}

#[tokio::test]
async fn effect_and_answer_are_there_together_or_not_at_all() {
    let faults = [Fault::AnswersWhatCannotBeStored];
    let (site, db, books) = Site::fresh(Books::with(faults), spec()).await;
    let first = site.client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(first.status, 500, "{first:?}");
    assert_eq!(db.count("app.payment").await, 0);
    let again = site.client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(again.status, 201, "{again:?}");
    assert_eq!(db.count("app.payment").await, 1);
    assert_eq!(books.runs.load(Ordering::SeqCst), 2);
    db.verify().await;
    site.engine.shutdown().await;
}

#[tokio::test]
async fn a_panic_in_the_route_leaves_nothing_and_is_tried_again() {
    let faults = [Fault::Panics, Fault::Panics];
    let (site, db, books) = Site::fresh(Books::with(faults), spec()).await;
    let answer = site.client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(books.runs.load(Ordering::SeqCst), 3);
    assert_eq!(db.count("app.payment").await, 1);
    site.engine.shutdown().await;

    // One that goes on panicking ends as a failure without effect, and may begin anew.
    let db = ledger().await;
    let always = [Fault::Panics; RetryPolicy::TRIES_MIN as usize];
    let kind = HandlerKind::Function(Arc::new(Books::with(always)));
    let mut once = handler(kind, spec());
    once.policy.retry = RetryPolicy {
        span: Duration::ZERO,
        ..once.policy.retry
    };
    let site = Site::start(&db.url, once).await;
    let answer = site.client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.is_problem("operation-failed"), "{answer:?}");
    assert!(!answer.body.contains("bug"), "{answer:?}");
    assert_eq!(db.count("app.payment").await, 0);
    let again = site.client.submit("pay", "k", r#"{"amount": 5}"#).await;
    assert_eq!(again.status, 201, "{again:?}");
    assert_eq!(db.count("app.payment").await, 1);
    site.engine.shutdown().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_in_mid_run_loses_no_answer() {
    let gate = Gate::closed();
    let books = Books {
        gate: Some(gate.clone()),
        ..Books::default()
    };
    let (site, db, books) = Site::fresh(books, spec()).await;
    let mut raw = RawHttp::connect(site.client.api).await;
    let request = "POST /v1/operations/pay HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                   Idempotency-Key: k\r\nContent-Length: 12\r\n\r\n{\"amount\":5}";
    assert!(raw.send(request).await);
    until("the route runs", async || {
        books.runs.load(Ordering::SeqCst) == 1
    })
    .await;
    drop(raw);
    gate.open();
    site.client.until_state("pay", "k", "completed").await;
    let again = site.client.submit("pay", "k", r#"{"amount":5}"#).await;
    assert_eq!((again.status, again.replayed()), (201, true), "{again:?}");
    assert_eq!(books.runs.load(Ordering::SeqCst), 1);
    assert_eq!(db.count("app.payment").await, 1);
    site.engine.shutdown().await;
}

#[tokio::test]
async fn what_is_under_way_is_told_as_the_profile_says() {
    for (profile, status, other) in [(Profile::Standard, 202, 409), (Profile::Ietf, 409, 422)] {
        let gate = Gate::closed();
        let books = Books {
            gate: Some(gate.clone()),
            ..Books::default()
        };
        let spec = OperationSpec {
            profile,
            wait: Duration::from_millis(50),
            ..spec()
        };
        let (site, db, _) = Site::fresh(books, spec).await;
        let first = site.client.submit("pay", "a/b", r#"{"amount":5}"#).await;
        assert_eq!(first.status, 202, "{first:?}");
        let retry = site.client.submit("pay", "a/b", r#"{"amount":5}"#).await;
        assert_eq!(retry.status, status, "{retry:?}");
        let location = retry.header("Location").unwrap();
        assert_eq!(location, "/v1/operations/pay/keys/a%2Fb");
        assert!(retry.header("Retry-After").is_some());
        let told = site.client.get(location).await.json();
        assert_eq!(
            (&told["state"], &told["key"]),
            (&"processing".into(), &"a/b".into())
        );
        let mismatch = site.client.submit("pay", "a/b", r#"{"amount":6}"#).await;
        assert_eq!(mismatch.status, other, "{mismatch:?}");
        gate.open();
        site.client.until_state("pay", "a/b", "completed").await;
        assert_eq!(db.count("app.payment").await, 1);
        assert_eq!(db.count("conflict").await, 1);
        site.engine.shutdown().await;
    }
}
