//! What people ask: one event's timeline, lists of events.

use std::time::SystemTime;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::{Digest, EffectKey, EventKey};

use super::connection::Connection;
use super::transaction::{Limits, Transaction};
use super::{Store, StoreError};

const FIND: &str = include_str!("sql/event_find.sql");
const ONE: &str = include_str!("sql/event_one.sql");
const BODY: &str = include_str!("sql/event_body.sql");
const STATE: &str = include_str!("sql/event_state.sql");
const LIST: &str = include_str!("sql/event_list.sql");
const RECEIPTS: &str = include_str!("sql/timeline_receipts.sql");
const DELIVERIES: &str = include_str!("sql/timeline_deliveries.sql");
const OUTCOMES: &str = include_str!("sql/timeline_outcomes.sql");
const ATTEMPTS: &str = include_str!("sql/timeline_attempts.sql");
const CONFLICTS: &str = include_str!("sql/timeline_conflicts.sql");
const AUDIT: &str = include_str!("sql/timeline_audit.sql");

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
    /// `unreadable`, `ignored`, `unrecognized`, `pending`, `dead`, `failed` or `succeeded`.
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
    /// `ready` or `leased`.
    pub state: String,
    /// Recorded failures of this run.
    pub failures: i16,
    /// A lease was lost before.
    pub suspect: bool,
    /// When it is due.
    pub run_at: Timestamp,
    /// End of the lease.
    pub lease_until: Option<Timestamp>,
    /// The stable id sent with outside effects.
    pub effect_key: String,
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
    /// `handler` or `operator`.
    pub decided_by: String,
    /// Why, for people.
    pub reason: Option<String>,
    /// What it made.
    pub resource: Option<String>,
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
    /// `retry`, `permanent`, `lost`, `evidence`.
    pub verdict: String,
    /// What went wrong.
    pub error: Option<String>,
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

/// An event found by key.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) event_id: Uuid,
    pub(crate) key: EventKey,
    pub(crate) raw_digest: String,
    pub(crate) first_seen: Timestamp,
    pub(crate) source_id: i32,
    pub(crate) source_first_name: String,
}

impl Store {
    /// From a key, or from a provider's id when unambiguous, to the event.
    pub(crate) async fn find(&self, source: &str, key: &str) -> Result<Found, StoreError> {
        let unknown = || StoreError::NotFound(format!("source {source:?} has no event {key:?}"));
        // A NUL cannot be in any key, nor in a PostgreSQL text.
        if key.contains('\0') || source.contains('\0') || key.is_empty() {
            return Err(unknown());
        }
        let connection = self.admin().await?;
        let as_first_part = match EventKey::of(key) {
            Ok(escaped) => format!("{}:", escaped.as_str()),
            // Longer than any id: it can only be a whole key.
            Err(_) => format!("{key}:"),
        };
        let rows = query(&connection, FIND, &[&source, &key, &as_first_part]).await?;
        let row = match rows.as_slice() {
            [] => return Err(unknown()),
            [row] => row,
            [first, ..] if first.get("exact") => first,
            many => {
                let keys: Vec<&str> = many.iter().map(|row| row.get("key")).collect();
                return Err(StoreError::Refused(format!(
                    "{key:?} is ambiguous in source {source:?}; give the whole key, for example {}",
                    keys.join(" or ")
                )));
            }
        };
        Ok(Found {
            event_id: row.get("event_id"),
            key: EventKey::stored(row.get::<_, &str>("key")).map_err(|_| unknown())?,
            raw_digest: hex_of(row, "raw_digest"),
            first_seen: time(row, "first_seen"),
            source_id: row.get("id"),
            source_first_name: row.get("first_name"),
        })
    }

    /// Everything about one event. `key` may also be the provider's id when unambiguous.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when there is none, [`StoreError::Refused`] when ambiguous.
    pub async fn timeline(&self, source: &str, key: &str) -> Result<Timeline, StoreError> {
        let found = self.find(source, key).await?;
        let connection = self.admin().await?;
        let id = found.event_id;
        // One snapshot, or the state would be that of before an outcome which is listed below it.
        let snapshot = Transaction::snapshot(&connection, Limits::SHORT).await?;
        let one = query(&connection, ONE, &[&id]).await?;
        let derived: Option<String> = query(&connection, STATE, &[&id])
            .await?
            .first()
            .and_then(|row| row.get(0));
        let one = one.first();
        let text = |column: &str| one.and_then(|row| row.get::<_, Option<String>>(column));
        let receipts = query(&connection, RECEIPTS, &[&id]).await?;
        let deliveries = query(&connection, DELIVERIES, &[&id]).await?;
        let outcomes = query(&connection, OUTCOMES, &[&id]).await?;
        let attempts = query(&connection, ATTEMPTS, &[&id]).await?;
        let conflicts = query(
            &connection,
            CONFLICTS,
            &[&found.source_id, &found.key.as_str()],
        )
        .await?;
        let audit = query(&connection, AUDIT, &[&id.to_string()]).await?;
        snapshot.commit().await?;
        let effect_key = |row: &Row| {
            EffectKey::derive(
                &found.source_first_name,
                &found.key,
                row.get("first_name"),
                row.get("generation"),
            )
            .as_str()
            .to_owned()
        };
        let stored_state = text("state");
        Ok(Timeline {
            event: EventSummary {
                event_id: id,
                source: source.to_owned(),
                key: found.key.as_str().to_owned(),
                event_type: text("type"),
                entity: text("entity"),
                state: derived
                    .or(stored_state)
                    .unwrap_or_else(|| "unrecognized".to_owned()),
                received_at: found.first_seen,
                occurred_at: one.and_then(|row| time_opt(row, "occurred_at")),
            },
            provider_id: text("provider_id"),
            account: text("account"),
            mode: text("mode"),
            state_reason: text("state_reason"),
            raw_digest: found.raw_digest.clone(),
            correlation_id: text("correlation_id"),
            request: one.and_then(|row| {
                Some(RequestInfo {
                    received_at: time_opt(row, "received_at")?,
                    body_bytes: row.get::<_, Option<i64>>("body_bytes")?,
                    secret_label: row.get("secret_label"),
                    peer: row.get("peer"),
                    path: row.get("path"),
                    headers: row
                        .get::<_, Option<&[u8]>>("headers")
                        .and_then(|bytes| serde_json::from_slice(bytes).ok())
                        .unwrap_or_default(),
                })
            }),
            received_count: 1 + receipts.first().map_or(0, |row| row.get::<_, i64>("total")),
            receipts: receipts
                .iter()
                .map(|row| ReceiptInfo {
                    received_at: time(row, "received_at"),
                    count: row.get("count"),
                    secret_label: row.get("secret_label"),
                })
                .collect(),
            deliveries: deliveries
                .iter()
                .map(|row| DeliveryInfo {
                    handler: row.get("name"),
                    run: row.get("run"),
                    state: row.get("state"),
                    failures: row.get("failures"),
                    suspect: row.get("suspect"),
                    run_at: time(row, "run_at"),
                    lease_until: time_opt(row, "lease_until"),
                    effect_key: effect_key(row),
                })
                .collect(),
            outcomes: outcomes
                .iter()
                .map(|row| OutcomeInfo {
                    handler: row.get("name"),
                    run: row.get("run"),
                    result: row.get("result"),
                    decided_by: row.get("decided_by"),
                    reason: row.get("reason"),
                    resource: row.get("resource"),
                    attempts: row.get("attempts"),
                    finished_at: time(row, "finished_at"),
                    effect_key: effect_key(row),
                })
                .collect(),
            attempts: attempts
                .iter()
                .map(|row| AttemptInfo {
                    handler: row.get("name"),
                    run: row.get("run"),
                    verdict: row.get("verdict"),
                    error: row.get("error"),
                    started_at: time_opt(row, "started_at"),
                    ended_at: time(row, "ended_at"),
                })
                .collect(),
            conflicts: conflicts
                .iter()
                .map(|row| ConflictInfo {
                    seen_at: time(row, "seen_at"),
                    first_digest: hex_of(row, "first_digest"),
                    raw_digest: hex_of(row, "raw_digest"),
                })
                .collect(),
            audit: audit
                .iter()
                .map(|row| AuditInfo {
                    at: time(row, "at"),
                    actor: row.get("actor"),
                    action: row.get("action"),
                    reason: row.get("reason"),
                })
                .collect(),
        })
    }

    /// A page of events, newest first.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        let limit = filter.limit.clamp(1, PAGE_MAX);
        let pattern = filter.event_type.as_deref().map(like_pattern);
        let connection = self.admin().await?;
        let rows = query(
            &connection,
            LIST,
            &[
                &filter.source,
                &pattern,
                &filter.state,
                &filter.before,
                &i64::from(limit),
            ],
        )
        .await?;
        let events: Vec<EventSummary> = rows
            .iter()
            .map(|row| EventSummary {
                event_id: row.get("id"),
                source: row.get("name"),
                key: row.get("key"),
                event_type: row.get("type"),
                entity: row.get("entity"),
                state: row.get("state"),
                received_at: minted_at(row.get("id")),
                occurred_at: time_opt(row, "occurred_at"),
            })
            .collect();
        let next = events
            .last()
            .filter(|_| events.len() == usize::from(limit))
            .map(|e| e.event_id.to_string());
        Ok(EventPage { events, next })
    }

    /// The exact bytes of the event's item.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when unknown, [`StoreError::PayloadExpired`] when the payload was
    /// dropped.
    pub async fn body(&self, source: &str, key: &str) -> Result<Vec<u8>, StoreError> {
        let found = self.find(source, key).await?;
        let connection = self.admin().await?;
        query(&connection, BODY, &[&found.event_id])
            .await?
            .first()
            .map(|row| row.get(0))
            .ok_or_else(|| {
                StoreError::PayloadExpired(format!("the payload of {} was dropped", found.key))
            })
    }
}

async fn query(
    connection: &Connection,
    sql: &'static str,
    params: super::transaction::Params<'_>,
) -> Result<Vec<Row>, StoreError> {
    let statement = connection.prepared(sql).await?;
    Ok(connection.client().query(&statement, params).await?)
}

fn time_opt(row: &Row, column: &str) -> Option<Timestamp> {
    row.get::<_, Option<SystemTime>>(column)
        .and_then(|at| Timestamp::try_from(at).ok())
}

fn time(row: &Row, column: &str) -> Timestamp {
    time_opt(row, column).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn hex_of(row: &Row, column: &str) -> String {
    Digest::from_bytes(row.get(column))
        .map(|digest| digest.hex())
        .unwrap_or_default()
}

/// A UUIDv7 carries the time of its transaction in its first 48 bits, in milliseconds.
fn minted_at(id: Uuid) -> Timestamp {
    let millis = (id.as_u128() >> 80) as i64;
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// `*` becomes any run of characters, everything else stands for itself.
fn like_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 2);
    for character in text.chars().filter(|c| *c != '\0') {
        match character {
            '*' => pattern.push('%'),
            '%' | '_' | '\\' => {
                pattern.push('\\');
                pattern.push(character);
            }
            other => pattern.push(other),
        }
    }
    pattern
}
