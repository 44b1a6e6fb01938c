//! Everything known about one event.

use tokio_postgres::Row;

use crate::domain::{EffectKey, Priority};

use super::super::flow::paused;
use super::super::replay::{self, Finished};
use super::super::transaction::{Limits, Transaction};
use super::super::{Store, StoreError};
use super::{
    AttemptInfo, AuditInfo, BehindInfo, CauseInfo, ConflictInfo, DeadLetterInfo, DeliveryInfo,
    EventSummary, Found, OutcomeInfo, ReceiptInfo, RequestInfo, Timeline, hex_of, time, time_opt,
};

const ONE: &str = include_str!("../sql/event_one.sql");
const STATE: &str = include_str!("../sql/event_state.sql");
const RECEIPTS: &str = include_str!("../sql/timeline_receipts.sql");
const DELIVERIES: &str = include_str!("../sql/timeline_deliveries.sql");
const OUTCOMES: &str = include_str!("../sql/timeline_outcomes.sql");
const ATTEMPTS: &str = include_str!("../sql/timeline_attempts.sql");
const CONFLICTS: &str = include_str!("../sql/timeline_conflicts.sql");
const AUDIT: &str = include_str!("../sql/timeline_audit.sql");

impl Store {
    /// Everything about one event. `key` may also be the provider's id when unambiguous.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when there is none, [`StoreError::Refused`] when ambiguous.
    pub async fn timeline(&self, source: &str, key: &str) -> Result<Timeline, StoreError> {
        let found = self.find(source, key).await?;
        let connection = self.queries().await?;
        // One snapshot, or the state would be that of before an outcome which is listed below it.
        let snapshot = Transaction::snapshot(&connection, Limits::SHORT).await?;
        let id = found.event_id;
        let one = snapshot.query(ONE, &[&id]).await?;
        let one = one.first();
        let text = |column: &str| one.and_then(|row| row.get::<_, Option<String>>(column));
        let derived: Option<String> = snapshot
            .query(STATE, &[&id])
            .await?
            .first()
            .and_then(|row| row.get(0));
        let receipts = snapshot.query(RECEIPTS, &[&id]).await?;
        let deliveries = snapshot.query(DELIVERIES, &[&id, &found.source_id]).await?;
        let outcomes = snapshot.query(OUTCOMES, &[&id]).await?;
        let attempts = snapshot.query(ATTEMPTS, &[&id]).await?;
        let conflicts = snapshot
            .query(CONFLICTS, &[&found.source_id, &found.key.as_str()])
            .await?;
        let audit = snapshot.query(AUDIT, &[&id.to_string()]).await?;
        let request = one.and_then(request);
        let mut dead_letters = Vec::new();
        for row in last_dead(&outcomes, &deliveries) {
            let handler: &str = row.get("name");
            let finished = Finished {
                event_id: id,
                handler_id: row.get("handler_id"),
                handler,
                retired: row.get("retired"),
                on_unknown: row.get("on_unknown"),
                stored: request.is_some(),
                pair: format!("event {} of {source} and handler {handler}", found.key),
            };
            dead_letters.push(DeadLetterInfo {
                handler: handler.to_owned(),
                run: row.get("run"),
                refused: replay::refusal(&snapshot, &finished).await?,
            });
        }
        snapshot.commit().await?;
        Ok(Timeline {
            event: EventSummary {
                event_id: id,
                source: source.to_owned(),
                key: found.key.as_str().to_owned(),
                event_type: text("type"),
                entity: text("entity"),
                state: derived
                    .or_else(|| text("state"))
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
            caused_by: text("cause_source")
                .zip(text("cause_key"))
                .map(|(source, key)| CauseInfo { source, key }),
            request,
            received_count: 1 + receipts.first().map_or(0, |row| row.get::<_, i64>("total")),
            receipts: receipts.iter().map(receipt).collect(),
            deliveries: deliveries.iter().map(|row| delivery(&found, row)).collect(),
            outcomes: outcomes.iter().map(|row| outcome(&found, row)).collect(),
            attempts: attempts.iter().map(attempt).collect(),
            conflicts: conflicts.iter().map(conflict).collect(),
            audit: audit.iter().map(action).collect(),
            dead_letters,
        })
    }
}

/// Of each handler that has no open run, the last finished one, if it is a dead letter.
fn last_dead<'r>(outcomes: &'r [Row], deliveries: &'r [Row]) -> impl Iterator<Item = &'r Row> {
    let name = |row: &Row| row.get::<_, String>("name");
    let run = |row: &Row| row.get::<_, i16>("run");
    outcomes.iter().filter(move |row| {
        let later = |other: &Row| name(other) == name(row) && run(other) > run(row);
        row.get::<_, &str>("result") == "dead"
            && !outcomes.iter().any(later)
            && !deliveries.iter().any(|open| name(open) == name(row))
    })
}

/// `None` once the payload was dropped.
fn request(row: &Row) -> Option<RequestInfo> {
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
}

fn receipt(row: &Row) -> ReceiptInfo {
    ReceiptInfo {
        received_at: time(row, "received_at"),
        count: row.get("count"),
        secret_label: row.get("secret_label"),
    }
}

fn delivery(found: &Found, row: &Row) -> DeliveryInfo {
    DeliveryInfo {
        handler: row.get("name"),
        run: row.get("run"),
        state: row.get("state"),
        state_reason: row.get("state_reason"),
        lane: row.get("lane"),
        failures: row.get("failures"),
        suspect: row.get("suspect"),
        run_at: time_opt(row, "run_at"),
        lease_until: time_opt(row, "lease_until"),
        uncertain_at: time_opt(row, "uncertain_at"),
        in_flight_until: time_opt(row, "in_flight_until"),
        probes: row.get("probes"),
        effect_key: effect_key(found, row),
        priority: Priority::stored(row.get("priority")).as_str(),
        handler_paused: paused(row, "handler_"),
        source_paused: paused(row, "source_"),
        behind: behind(row),
    }
}

fn behind(row: &Row) -> Option<BehindInfo> {
    Some(BehindInfo {
        source: row.get::<_, Option<String>>("behind_source")?,
        key: row.get("behind_key"),
        state: row.get("behind_state"),
        source_paused: paused(row, "behind_"),
    })
}

fn outcome(found: &Found, row: &Row) -> OutcomeInfo {
    OutcomeInfo {
        handler: row.get("name"),
        run: row.get("run"),
        result: row.get("result"),
        decided_by: row.get("decided_by"),
        reason: row.get("reason"),
        resource: row.get("resource"),
        external_id: row.get("external_id"),
        attempts: row.get("attempts"),
        finished_at: time(row, "finished_at"),
        effect_key: effect_key(found, row),
    }
}

fn effect_key(found: &Found, row: &Row) -> String {
    EffectKey::derive(
        &found.source_first_name,
        &found.key,
        row.get("first_name"),
        row.get("generation"),
    )
    .as_str()
    .to_owned()
}

fn attempt(row: &Row) -> AttemptInfo {
    AttemptInfo {
        handler: row.get("name"),
        run: row.get("run"),
        verdict: row.get("verdict"),
        error: row.get("error"),
        told_by: row
            .get::<_, Option<String>>("told_source")
            .zip(row.get("told_key"))
            .map(|(source, key)| CauseInfo { source, key }),
        started_at: time_opt(row, "started_at"),
        ended_at: time(row, "ended_at"),
    }
}

fn conflict(row: &Row) -> ConflictInfo {
    ConflictInfo {
        seen_at: time(row, "seen_at"),
        first_digest: hex_of(row, "first_digest"),
        raw_digest: hex_of(row, "raw_digest"),
    }
}

fn action(row: &Row) -> AuditInfo {
    AuditInfo {
        at: time(row, "at"),
        actor: row.get("actor"),
        action: row.get("action"),
        reason: row.get("reason"),
        resolved_as: row.get("resolved_as"),
        bulk: row.get("bulk"),
    }
}
