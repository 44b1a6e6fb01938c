//! What reacts to an event.

use std::time::Duration;

use crate::domain::{Pattern, Policy, SecretText};

/// A handler as configured.
#[derive(Debug, Clone)]
pub struct HandlerSpec {
    /// Its name.
    pub name: String,
    /// Former name, so that its deliveries and outcomes stay its own.
    pub was: Option<String>,
    /// Which events it takes.
    pub events: Vec<Pattern>,
    /// What it does.
    pub kind: HandlerKind,
    /// Retry budget and crash cap.
    pub policy: Policy,
    /// Longest run of one delivery.
    pub timeout: Duration,
    /// How long a claim holds.
    pub lease: Duration,
    /// Deliveries settled per transaction (transactional kinds).
    pub batch: u16,
    /// Calls in flight per node (`http`).
    pub concurrency: u16,
}

/// The kinds of handlers.
#[derive(Debug, Clone)]
pub enum HandlerKind {
    /// A SQL function in the engine's transaction: `schema.function`.
    Sql {
        /// Qualified name of a function `(oncehook.delivered) returns void or jsonb`.
        call: String,
    },
    /// A signed POST.
    Http(HttpTarget),
}

/// Where an `http` handler posts to.
#[derive(Debug, Clone)]
pub struct HttpTarget {
    /// URL.
    pub url: String,
    /// Signing secrets (label, `whsec_...`); every one signs, so that the receiver can rotate.
    pub secrets: Vec<(String, SecretText)>,
}
