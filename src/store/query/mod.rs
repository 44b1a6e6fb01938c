//! What people ask: one event's timeline, lists of events.

mod find;
mod list;
mod timeline;

use std::time::SystemTime;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::Digest;

use super::flow::Pause;

pub(crate) use find::Found;
pub(super) use list::like_pattern;

/// Largest page.
pub const PAGE_MAX: u16 = 500;

/// One line of an event list.
#[derive(Debug, Clone, Serialize)]
pub struct EventSummary {
    /// oncehook's id.
    pub event_id: Uuid,
    /// Source name.
    pub source: String,
    /// Event key.
    pub key: String,
    /// Provider's event type.
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    /// Business object.
    pub entity: Option<String>,
    /// `unreadable`, `ignored`, `unrecognized`, `uncertain`, `held`, `pending`, `dead`, `failed` or
    /// `succeeded`.
    pub state: String,
    /// When it was first received, database clock.
    pub received_at: Timestamp,
    /// When it happened, provider's clock.
    pub occurred_at: Option<Timestamp>,
}

/// One page of events, newest first.
#[derive(Debug, Clone, Serialize)]
pub struct EventPage {
    /// The events.
    pub events: Vec<EventSummary>,
    /// Pass as `before` for the next page; `None` on the last.
    pub next: Option<String>,
}

/// Filters of an event list; all given ones must hold.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Source name.
    pub source: Option<String>,
    /// Event type, `*` for any run of characters.
    pub event_type: Option<String>,
    /// State word as in [`EventSummary::state`].
    pub state: Option<String>,
    /// Keyset position: events older than this id.
    pub before: Option<Uuid>,
    /// Page size, 1 to 500.
    pub limit: u16,
}

/// Everything known about one event, for `show` and `GET /v1/events/{source}/{key}`.
#[derive(Debug, Clone, Serialize)]
pub struct Timeline {
    /// The event itself.
    #[serde(flatten)]
    pub event: EventSummary,
    /// The provider's own id.
    pub provider_id: Option<String>,
    /// Connected account, if not the source's own.
    pub account: Option<String>,
    /// `live`, `test`, `unknown`.
    pub mode: Option<String>,
    /// Why it is in the state it was stored with (unreadable, ignored).
    pub state_reason: Option<String>,
    /// SHA-256 of the item, hex.
    pub raw_digest: String,
    /// Correlation id of the request that brought it.
    pub correlation_id: Option<String>,
    /// The event whose handler emitted it.
    pub caused_by: Option<CauseInfo>,
    /// The first request that brought it; `None` once the payload was dropped.
    pub request: Option<RequestInfo>,
    /// Later copies: one entry per batch of duplicates.
    pub receipts: Vec<ReceiptInfo>,
    /// How often it was received, the first time included.
    pub received_count: i64,
    /// Unfinished work.
    pub deliveries: Vec<DeliveryInfo>,
    /// Finished runs.
    pub outcomes: Vec<OutcomeInfo>,
    /// Failed and lost tries.
    pub attempts: Vec<AttemptInfo>,
    /// Other content that came under this key.
    pub conflicts: Vec<ConflictInfo>,
    /// What operators did.
    pub audit: Vec<AuditInfo>,
    /// Handlers whose last run is a dead letter, while none is open.
    pub dead_letters: Vec<DeadLetterInfo>,
}

/// A dead letter that is the last word on its event at one handler.
#[derive(Debug, Clone, Serialize)]
pub struct DeadLetterInfo {
    /// Handler name.
    pub handler: String,
    /// Run number.
    pub run: i16,
    /// Why a replay without force would be refused now; `None`: it would open a run.
    pub refused: Option<String>,
}

/// The event whose handler emitted another one.
#[derive(Debug, Clone, Serialize)]
pub struct CauseInfo {
    /// Its source.
    pub source: String,
    /// Its key.
    pub key: String,
}

/// The stored request.
#[derive(Debug, Clone, Serialize)]
pub struct RequestInfo {
    /// When it arrived.
    pub received_at: Timestamp,
    /// Bytes of the body.
    pub body_bytes: i64,
    /// Label of the secret that verified it.
    pub secret_label: Option<String>,
    /// Peer address.
    pub peer: Option<String>,
    /// Path of the request.
    pub path: Option<String>,
    /// Stored headers, allow-listed.
    pub headers: serde_json::Value,
}

/// A batch of duplicates.
#[derive(Debug, Clone, Serialize)]
pub struct ReceiptInfo {
    /// When.
    pub received_at: Timestamp,
    /// How many copies.
    pub count: i32,
    /// Label of the secret that verified them.
    pub secret_label: Option<String>,
}

/// An unfinished (event, handler).
#[derive(Debug, Clone, Serialize)]
pub struct DeliveryInfo {
    /// Handler name.
    pub handler: String,
    /// Run number, from 1.
    pub run: i16,
    /// `ready`, `leased`, `blocked` (others of its lane come first), `uncertain` (the result of its
    /// call is not known) or `held` (it waits for a person, and its lane with it).
    pub state: String,
    /// Why it is held.
    pub state_reason: Option<String>,
    /// Those of one lane run one at a time.
    pub lane: Option<String>,
    /// Recorded failures of this run.
    pub failures: i16,
    /// A lease was lost before.
    pub suspect: bool,
    /// When it is due; of an uncertain one, when the receiver is asked next, `None` when a person
    /// must decide.
    pub run_at: Option<Timestamp>,
    /// End of the lease.
    pub lease_until: Option<Timestamp>,
    /// Since when the result of its call has been unknown.
    pub uncertain_at: Option<Timestamp>,
    /// Until when a call may be under way.
    pub in_flight_until: Option<Timestamp>,
    /// How often the receiver was asked about it.
    pub probes: i16,
    /// The stable id sent with outside effects.
    pub effect_key: String,
    /// `high`, `normal` or `low`.
    pub priority: &'static str,
    /// The pause of its handler.
    pub handler_paused: Option<Pause>,
    /// The pause of its event's source.
    pub source_paused: Option<Pause>,
    /// Of a blocked one: the first of its lane.
    pub behind: Option<BehindInfo>,
}

/// The delivery that others of its lane wait for.
#[derive(Debug, Clone, Serialize)]
pub struct BehindInfo {
    /// Source name.
    pub source: String,
    /// Event key.
    pub key: String,
    /// Its state.
    pub state: String,
    /// The pause of its source: until it ends, the whole lane waits.
    pub source_paused: Option<Pause>,
}

/// A finished run.
#[derive(Debug, Clone, Serialize)]
pub struct OutcomeInfo {
    /// Handler name.
    pub handler: String,
    /// Run number.
    pub run: i16,
    /// `succeeded`, `failed`, `skipped`, `dead`, `cancelled`.
    pub result: String,
    /// `handler`, `probe`, `operator` or `webhook`.
    pub decided_by: String,
    /// Why, for people.
    pub reason: Option<String>,
    /// What it made.
    pub resource: Option<String>,
    /// The id that the outside world gave it.
    pub external_id: Option<String>,
    /// Tries of the run.
    pub attempts: i32,
    /// When.
    pub finished_at: Timestamp,
    /// The stable id sent with outside effects.
    pub effect_key: String,
}

/// A failed or lost try.
#[derive(Debug, Clone, Serialize)]
pub struct AttemptInfo {
    /// Handler name.
    pub handler: String,
    /// Run number.
    pub run: i16,
    /// `retry`, `permanent`, `unknown`, `lost`, `evidence`, `probe`.
    pub verdict: String,
    /// What went wrong.
    pub error: Option<String>,
    /// Of evidence: the later event that says so.
    pub told_by: Option<CauseInfo>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Timestamp,
}

/// Other content under a known key.
#[derive(Debug, Clone, Serialize)]
pub struct ConflictInfo {
    /// When it was first seen.
    pub seen_at: Timestamp,
    /// Digest of the first copy, hex.
    pub first_digest: String,
    /// Digest of this copy, hex.
    pub raw_digest: String,
}

/// An operator's action.
#[derive(Debug, Clone, Serialize)]
pub struct AuditInfo {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What.
    pub action: String,
    /// Why.
    pub reason: Option<String>,
    /// What `resolve` decided.
    #[serde(rename = "as")]
    pub resolved_as: Option<String>,
    /// The bulk replay that it was part of.
    pub bulk: Option<String>,
}

/// What `replay` did or would do for one (event, handler).
#[derive(Debug, Clone, Serialize)]
pub struct Replayed {
    /// Source name.
    pub source: String,
    /// Event key.
    pub key: String,
    /// Handler name.
    pub handler: String,
    /// The new run.
    pub run: i16,
    /// The new run's effect key.
    pub effect_key: String,
}

/// What `resolve` did for one (event, handler).
#[derive(Debug, Clone, Serialize)]
pub struct Resolved {
    /// Source name.
    pub source: String,
    /// Event key.
    pub key: String,
    /// Handler name.
    pub handler: String,
    /// The run that was decided.
    pub run: i16,
    /// `succeeded`, `failed`, `retry`, `dead`, `probe`.
    #[serde(rename = "as")]
    pub resolved_as: &'static str,
    /// The run that begins, where a held delivery is tried again.
    pub new_run: Option<i16>,
    /// The run's effect key; a retry keeps it.
    pub effect_key: String,
}

pub(super) fn time_opt(row: &Row, column: &str) -> Option<Timestamp> {
    row.get::<_, Option<SystemTime>>(column)
        .and_then(|at| Timestamp::try_from(at).ok())
}

pub(super) fn time(row: &Row, column: &str) -> Timestamp {
    time_opt(row, column).unwrap_or(Timestamp::UNIX_EPOCH)
}

pub(super) fn hex_of(row: &Row, column: &str) -> String {
    Digest::from_bytes(row.get(column))
        .map(|digest| digest.hex())
        .unwrap_or_default()
}
