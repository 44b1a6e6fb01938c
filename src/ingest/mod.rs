//! Verified items become a durable receipt.
//!
//! Requests wait in a bounded queue, are written in batches of as many as are waiting, one unnest
//! statement each, and are answered after the COMMIT. A caller that hangs up stops nothing.

mod batch;
mod judge;
mod queue;
pub(crate) mod relay;
mod renew;
mod report;

pub(crate) use batch::write;
pub use queue::{Ingest, IngestConfig};
pub(crate) use report::Report;

use std::sync::Arc;

use uuid::Uuid;

use crate::domain::{Item, LaneSource, Reading, Route, Routes};
use crate::provider::Source;

/// The raw request to keep.
#[derive(Debug, Clone)]
pub struct StoredRequest {
    /// The exact bytes received.
    pub body: actix_web::web::Bytes,
    /// Allow-listed headers as a JSON array of `[name, value]`.
    pub headers: Vec<u8>,
    /// Method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Query string with its values masked.
    pub query: Option<String>,
    /// Peer address.
    pub peer: Option<std::net::IpAddr>,
    /// Label of the secret that matched.
    pub secret_label: String,
    /// Correlation id, on every log line from request to handler.
    pub correlation_id: Uuid,
}

/// One verified request on its way to the table.
#[derive(Debug, Clone)]
pub struct Submission {
    /// Registry id of the source.
    pub source_id: i32,
    /// The source.
    pub source: Arc<Source>,
    /// What to keep of the request.
    pub request: StoredRequest,
    /// Its items, in the order of the body.
    pub items: Vec<Item>,
    /// Handlers each item is fanned out to, in the items' order. Only items that read as events
    /// get deliveries.
    pub routes: Vec<Vec<Route>>,
    /// How it came here.
    pub origin: Origin,
}

/// How a submission came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// By a request.
    #[default]
    Request,
    /// Emitted inside a transaction.
    Emitted {
        /// Its place in the outbox, which it leaves when it is stored.
        id: i64,
        /// The event whose handler emitted it.
        caused_by: Option<Uuid>,
    },
}

/// What became of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Fate {
    /// Stored now.
    New,
    /// Known already, same content.
    Duplicate,
    /// Known already, other content: recorded, never processed.
    Conflict,
}

/// Proof that every item of a request is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Receipt {
    /// Event id and fate per item, in the order of the submission.
    pub items: Vec<(Uuid, Fate)>,
}

/// The request could not be made durable; the sender should come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not stored: {reason}")]
pub struct Unavailable {
    /// Stable word for logs and metrics: `queue_full`, `database`, `shutting_down`, `too_slow`.
    pub reason: &'static str,
}

/// Which handlers take each item, and where it waits for its turn there. `only`: the one that takes all of
/// them, of an operation.
pub(crate) fn routes_of(
    routes: &Routes,
    submission: &Submission,
    only: Option<i32>,
) -> Vec<Vec<Route>> {
    let body = &submission.request.body;
    let name = &submission.source.name;
    let of = |item: &Item| match item.reading {
        Reading::Event => {
            let event = LaneSource {
                entity: item.entity.as_deref(),
                account: item.account.as_deref(),
                body: body.get(item.range.clone()).unwrap_or_default(),
            };
            let event_type = item.event_type.as_deref();
            match only {
                Some(handler) => routes.only(handler, name, event_type, event),
                None => routes.of(name, event_type, event),
            }
        }
        Reading::Unreadable(_) | Reading::Ignored(_) => Vec::new(),
    };
    submission.items.iter().map(of).collect()
}
