//! Hosts that never answer: connections are taken and nothing is said, or what is sent to them is dropped.

use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::crash::{POLL, metric, paid, put, until_metric};
use crate::support::{TestApp, oncehook, until};

use super::{booked, proxied_books};

const PASSWORD: &str = "hunter2-hunter2-hunter2";
/// The node's longest wait at its start.
const START_WAIT: Duration = Duration::from_secs(3);
const POLICY: &str = "timeout = \"1s\"\nretry = { for = \"1m\", first = \"10ms\", max = \"20ms\" }\n\
    breaker = { failures = 50, minimum = 5, first = \"200ms\", max = \"400ms\", probes = 2 }";
const EVENTS: usize = 10;

const HERE: &str = "
CREATE SCHEMA app;
CREATE TABLE app.noted (key text NOT NULL);
CREATE FUNCTION app.note(event oncehook.delivered) RETURNS void LANGUAGE sql AS $$
  INSERT INTO app.noted VALUES (event.key);
$$;
";

/// A host that drops what comes: its queue of connections is full.
struct Full {
    listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Full {
    async fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let mut queued = Vec::new();
        let connect = || TcpStream::connect(listener.local_addr().unwrap());
        while let Ok(taken) = timeout(Duration::from_millis(300), connect()).await {
            queued.push(taken.unwrap());
        }
        Self {
            listener,
            _queued: queued,
        }
    }
}

fn url(listener: &TcpListener) -> String {
    let address = listener.local_addr().unwrap();
    format!("postgresql://books:{PASSWORD}@{address}/books?sslmode=disable&connect_timeout=2")
}

/// One handler has its events in a database whose host falls silent; four more never had one that speaks.
#[tokio::test]
async fn hosts_that_never_answer_delay_a_start_once_and_burn_nothing() {
    let (other, proxy) = proxied_books().await;
    proxy.freeze();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let full = Full::new().await;
    let books = proxy
        .url(&other.name)
        .replace("postgres@", &format!("postgres:{PASSWORD}@"))
        + "&connect_timeout=2";
    let mut builder = TestApp::builder()
        .stripe("stripe")
        .toml(POLL)
        .setup(HERE)
        .sql_handler("here", "app.note", "")
        .sql_handler(
            "ledger",
            "app.book",
            &format!("database = {books:?}\n{POLICY}"),
        );
    for n in 0..4 {
        let url = url([&silent, &full.listener][n % 2]);
        let lines = format!("database = {url:?}\nevents = [\"*:none\"]");
        builder = builder.sql_handler(&format!("void_{n}"), "app.book", &lines);
    }
    let began = Instant::now();
    let mut app = builder.start().await;
    let took = began.elapsed();
    assert!(
        took < 3 * START_WAIT,
        "one time-out in all, and not five: {took:?}"
    );
    for handler in ["ledger", "void_0", "void_1", "void_2", "void_3"] {
        let said = format!("{handler:?}");
        until("it is said", async || {
            app.output().lines().any(|line| {
                line.contains("its deliveries wait") && line.contains(said.trim_matches('"'))
            })
        })
        .await;
    }

    for round in ["first", "second"] {
        let opened = metric(&app, "oncehook_breaker_opened_total").await;
        for n in 0..EVENTS {
            put(&app, &paid(&format!("{round}_{n}"))).await;
        }
        // Nobody waits for the silent one.
        until("what is here is done", async || {
            let done = format!("app.noted WHERE key LIKE '{round}%'");
            app.db
                .one::<i64>(&format!("SELECT count(*) FROM {done}"))
                .await
                == 10
        })
        .await;
        let openings = until_metric(&app, "oncehook_breaker_opened_total", |n| {
            n > opened.unwrap_or(0.0)
        })
        .await;
        let (_, handlers) = app.get("/v1/handlers").await;
        let handlers = handlers.as_array().unwrap();
        let ledger = handlers.iter().find(|h| h["name"] == "ledger").unwrap();
        assert_ne!(ledger["breaker"], "closed", "{ledger}");
        let tries = app.db.count("attempt").await;
        // Each event once before it opened, then two per opening.
        #[expect(clippy::cast_possible_truncation, reason = "a small count")]
        let most = 2 * i64::try_from(EVENTS).unwrap() + 2 * (openings as i64 + 1);
        assert!(tries <= most, "{tries} tries, {openings} openings");
        assert_eq!(app.db.count("outcome WHERE result <> 'succeeded'").await, 0);
        let errors: Vec<String> = app.db.all("SELECT error FROM oncehook.attempt").await;
        assert!(
            errors.iter().all(|error| !error.contains(PASSWORD)),
            "{errors:?}"
        );
        proxy.thaw();
        for n in 0..EVENTS {
            let key = format!("{round}_{n}");
            let outcome = app.until_outcome("stripe", &key, "ledger").await;
            assert_eq!(outcome["result"], "succeeded", "{outcome}");
            assert_eq!(booked(&other, &key).await, 1, "{key}");
        }
        // Now with connections that were open.
        proxy.freeze();
    }

    let began = Instant::now();
    let ran = oncehook(&app.config(), &["check", "--connect"], &[]).await;
    let took = began.elapsed();
    assert_eq!(ran.code, Some(1), "{}", ran.said());
    assert!(
        took < Duration::from_secs(7),
        "two seconds and not ten: {took:?}"
    );
    assert!(!ran.said().contains(PASSWORD), "{}", ran.said());
    proxy.thaw();
    app.db.verify().await;
    app.stop().await;
    assert!(!app.output().contains(PASSWORD));
}
