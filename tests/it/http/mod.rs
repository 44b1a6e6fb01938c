//! `POST /webhooks/{source}` and the API listener over real sockets.
//!
//! The sources use a provider made here, so that these tests speak of HTTP and of nothing else.

mod api;
mod mounted;
mod provider;
mod webhook;
mod wire;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use oncehook::domain::Secret;
use oncehook::engine::{Engine, EngineConfig};
use oncehook::http::{Running, ServeConfig, serve};
use oncehook::provider::{OnConflict, Source};
use oncehook::store::{Settings, Store};

use crate::support::TestDb;

use provider::Plain;
use wire::Wire;

/// Longest body these services take.
const BODY_BYTES: usize = 50_000;

/// Time they give a body.
const BODY_TIME: Duration = Duration::from_millis(800);

/// A service with the sources `plain`, `rejecting` (409 on a conflict) and `dialect` (its own
/// acknowledgement and refusal status).
struct Service {
    public: SocketAddr,
    api: SocketAddr,
    engine: Engine,
    running: Option<Running>,
    _db: TestDb,
}

async fn start() -> Service {
    let db = TestDb::new().await;
    let store = Store::new(Settings::parse(&db.url).unwrap(), 2).unwrap();
    let config = EngineConfig {
        sources: vec![
            source("plain", Plain::default(), OnConflict::Ack),
            source("rejecting", Plain::default(), OnConflict::Reject),
            source("dialect", Plain { dialect: true }, OnConflict::Ack),
        ],
        ..EngineConfig::default()
    };
    let engine = Engine::start(store, config).await.unwrap();
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = ServeConfig {
        public: loopback,
        api: loopback,
        body_bytes: BODY_BYTES,
        header_bytes: 64 << 10,
        body_time: BODY_TIME,
        metrics: None,
    };
    let running = serve(engine.clone(), config).await.unwrap();
    Service {
        public: running.public_addr(),
        api: running.api_addr(),
        engine,
        running: Some(running),
        _db: db,
    }
}

fn source(name: &str, provider: Plain, on_conflict: OnConflict) -> Source {
    let secret = Secret {
        label: "main".into(),
        key: provider::SECRET.to_vec(),
        until: None,
    };
    Source {
        name: name.into(),
        was: None,
        provider: Arc::new(provider),
        secrets: vec![secret],
        accept_modes: None,
        on_conflict,
    }
}

impl Service {
    /// Sends a correctly signed body on a connection of its own.
    async fn post(&self, source: &str, body: &str) -> String {
        let mut wire = Wire::open(self.public).await;
        wire.head(&format!("/webhooks/{source}"), &signed_fields(body))
            .await;
        wire.send(body).await;
        wire.answer().await
    }

    /// Asks the API listener.
    async fn get(&self, target: &str) -> String {
        let mut wire = Wire::open(self.api).await;
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .await;
        wire.answer().await
    }

    async fn stop(mut self) {
        if let Some(running) = self.running.take() {
            running.stop(Duration::from_secs(5)).await;
        }
        self.engine.shutdown().await;
    }
}

/// Signature and length of the body.
fn signed_fields(body: &str) -> String {
    format!(
        "X-Signature: {}\r\nContent-Length: {}\r\n",
        provider::signature(body.as_bytes()),
        body.len()
    )
}

fn event(id: &str) -> String {
    format!(r#"{{"id":"{id}","type":"order.paid"}}"#)
}

fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    answer
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
}
