//! The sender's side: signs, sends, and writes down what it sent and what it was told.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::json;

use super::log::{Entry, Kind, Log, now_us};
use crate::support::node;
use crate::support::signer;

/// The secret of the judge's source.
pub(crate) const SECRET: &str = "it's a Secret to everybody, or not";

/// The judge's source. Its signatures hold no time, so that a node whose clock is wrong takes
/// them as every other does.
pub(crate) const SOURCE: &str = "shop";

/// One request: event `n` or what pretends to be.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) key: String,
    pub(crate) kind: Kind,
    pub(crate) event_type: String,
    pub(crate) amount: i64,
}

impl Message {
    /// An event. Its amount is like no other event's.
    pub(crate) fn original(n: usize, event_type: &str) -> Self {
        Self {
            key: format!("evt_{n}"),
            kind: Kind::Original,
            event_type: event_type.to_owned(),
            amount: i64::try_from(n).unwrap() + 1,
        }
    }

    /// The same bytes again.
    pub(crate) fn copy(&self) -> Self {
        Self {
            kind: Kind::Copy,
            ..self.clone()
        }
    }

    /// Another amount under the same key.
    pub(crate) fn conflict(&self) -> Self {
        Self {
            kind: Kind::Conflict,
            amount: -self.amount,
            ..self.clone()
        }
    }

    /// An event that nobody sent.
    pub(crate) fn forged(n: usize) -> Self {
        Self {
            key: format!("forged_{n}"),
            kind: Kind::Forged,
            ..Self::original(n, "paid")
        }
    }

    fn body(&self) -> String {
        // About a kilobyte, as payment events are.
        let note = "lorem ipsum dolor sit amet ".repeat(32);
        json!({"id": self.key, "amount": self.amount, "note": note}).to_string()
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
}

/// Sends messages from any task.
#[derive(Debug, Clone)]
pub(crate) struct Provider {
    http: reqwest::Client,
    log: Log,
}

impl Provider {
    pub(crate) fn new(log: Log) -> Self {
        Self {
            http: node::client(),
            log,
        }
    }

    /// Sends once. `None`: no answer came, so nothing is known.
    pub(crate) async fn send(&self, node: SocketAddr, message: &Message) -> Option<Told> {
        let body = message.body();
        let secret = match message.kind {
            Kind::Forged => "somebody else's secret",
            _ => SECRET,
        };
        let request = self
            .http
            .post(format!("http://{node}/webhooks/{SOURCE}"))
            .header(
                "X-Hub-Signature-256",
                signer::github(secret, body.as_bytes()),
            )
            .header("X-GitHub-Delivery", &message.key)
            .header("X-GitHub-Event", &message.event_type)
            .header("Content-Type", "application/json")
            .body(body);
        self.log.append(&Entry::Sent {
            at_us: now_us(),
            key: message.key.clone(),
            kind: message.kind,
            event_type: message.event_type.clone(),
            amount: message.amount,
        });
        let begin = Instant::now();
        let response = request.send().await.ok()?;
        let told = Told {
            status: response.status().as_u16(),
            replayed: response.headers().contains_key("idempotency-replayed"),
        };
        self.log.append(&Entry::Answered {
            at_us: now_us(),
            key: message.key.clone(),
            kind: message.kind,
            status: told.status,
            replayed: told.replayed,
            took_us: u64::try_from(begin.elapsed().as_micros()).unwrap(),
        });
        // Read to its end, so that the connection is used again.
        drop(response.bytes().await);
        Some(told)
    }
}
