//! The life of a delivery in the table: claim, lock, finish, put back, reap.
//!
//! Every write proves its lease token and counts its rows.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::{DecidedBy, Ending, EventKey, Progress};

use super::StoreError;
use super::connection::Connection;
use super::transaction::{Transaction, expect_rows};
use super::uncertain;

const CLAIM: &str = include_str!("sql/delivery_claim.sql");
const CLAIM_SUSPECT: &str = include_str!("sql/delivery_claim_suspect.sql");
const SUSPECT_DUE: &str = include_str!("sql/delivery_suspect_due.sql");
const FINISH: &str = include_str!("sql/delivery_finish.sql");
const REMOVE: &str = include_str!("sql/delivery_remove.sql");
const RETRY: &str = include_str!("sql/delivery_retry.sql");
const SUSPECT: &str = include_str!("sql/delivery_suspect.sql");
const GIVE_BACK: &str = include_str!("sql/delivery_give_back.sql");
const EXPIRED: &str = include_str!("sql/delivery_expired.sql");
const EVIDENCE: &str = include_str!("sql/attempt_evidence.sql");
const ATTEMPT: &str = include_str!("sql/attempt_insert.sql");

/// A lease on one delivery, with what its handler needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) event_id: Uuid,
    pub(crate) handler_id: i32,
    pub(crate) run: i16,
    pub(crate) generation: i16,
    pub(crate) losses: i16,
    pub(crate) token: Uuid,
    pub(crate) progress: Progress,
    /// `None` when the event row is gone: then nothing can be run.
    pub(crate) event: Option<LeasedEvent>,
}

/// The event of a lease.
#[derive(Debug, Clone)]
pub(crate) struct LeasedEvent {
    pub(crate) source_id: i32,
    pub(crate) key: EventKey,
    pub(crate) event_type: Option<String>,
    pub(crate) entity: Option<String>,
    pub(crate) occurred_at: Option<Timestamp>,
    /// Of the request that brought it; on every log line from request to handler.
    pub(crate) correlation_id: Uuid,
}

impl Lease {
    /// The correlation id for log lines; nil once the event row is gone.
    pub(crate) fn correlation_id(&self) -> Uuid {
        self.event
            .as_ref()
            .map_or(Uuid::nil(), |event| event.correlation_id)
    }

    /// Number of this try in its run, from 1.
    pub(crate) fn attempt(&self) -> i32 {
        i32::from(self.progress.failures) + i32::from(self.losses) + 1
    }
}

/// What one handler may claim now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota {
    pub(crate) handler_id: i32,
    pub(crate) count: u16,
    pub(crate) lease: Duration,
    /// How long a call may be under way; `None` where nothing leaves the database.
    pub(crate) in_flight: Option<Duration>,
}

impl Quota {
    fn in_flight_s(quotas: &[Self]) -> Vec<Option<f64>> {
        let calls = quotas.iter().map(|q| q.in_flight);
        calls.map(|time| time.map(|t| t.as_secs_f64())).collect()
    }
}

/// A delivery that ends.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) event_id: Uuid,
    pub(crate) handler_id: i32,
    pub(crate) token: Uuid,
    pub(crate) ending: Ending,
    pub(crate) reason: Option<String>,
    pub(crate) resource: Option<String>,
    pub(crate) attempts: i32,
    /// For the log line after the commit.
    pub(crate) correlation_id: Uuid,
}

/// A delivery put back for later.
#[derive(Debug, Clone)]
pub(crate) struct PutBack {
    pub(crate) event_id: Uuid,
    pub(crate) handler_id: i32,
    pub(crate) token: Uuid,
    pub(crate) delay: Duration,
}

/// A try to record.
#[derive(Debug, Clone)]
pub(crate) struct NewAttempt {
    pub(crate) event_id: Uuid,
    pub(crate) handler_id: i32,
    pub(crate) run: i16,
    pub(crate) token: Uuid,
    pub(crate) verdict: &'static str,
    pub(crate) error: String,
    /// How long ago it began.
    pub(crate) age: Duration,
    /// For the log line after the commit.
    pub(crate) correlation_id: Uuid,
}

/// Leases due deliveries, at most the quota per handler.
///
/// # Errors
///
/// Nothing is leased, or it is leased under tokens that nobody holds and the reaper frees it.
pub(crate) async fn claim(
    connection: &Connection,
    quotas: &[Quota],
) -> Result<Vec<Lease>, StoreError> {
    let handlers: Vec<i32> = quotas.iter().map(|q| q.handler_id).collect();
    let counts: Vec<i32> = quotas.iter().map(|q| i32::from(q.count)).collect();
    let leases: Vec<f64> = quotas.iter().map(|q| q.lease.as_secs_f64()).collect();
    let rows = connection
        .query_by_index(
            CLAIM,
            &[&handlers, &counts, &leases, &Quota::in_flight_s(quotas)],
        )
        .await?;
    let claimed: Vec<Lease> = rows.iter().map(lease).collect();
    // More than the quota would be the nested-loop trap that the statement's shape prevents.
    let due: usize = quotas.iter().map(|q| usize::from(q.count)).sum();
    if claimed.len() > due {
        return Err(StoreError::RowCount {
            statement: "delivery_claim",
            changed: claimed.len() as u64,
            expected: due as u64,
        });
    }
    Ok(claimed)
}

/// Leases one suspect.
pub(crate) async fn claim_suspect(
    connection: &Connection,
    quotas: &[Quota],
) -> Result<Option<Lease>, StoreError> {
    let handlers: Vec<i32> = quotas.iter().map(|q| q.handler_id).collect();
    let leases: Vec<f64> = quotas.iter().map(|q| q.lease.as_secs_f64()).collect();
    let rows = connection
        .query_alone(
            CLAIM_SUSPECT,
            &[&handlers, &leases, &Quota::in_flight_s(quotas)],
        )
        .await?;
    Ok(rows.first().map(lease))
}

/// Whether a suspect is due.
pub(crate) async fn suspect_due(
    connection: &Connection,
    handlers: &[i32],
) -> Result<bool, StoreError> {
    let rows = connection.query_alone(SUSPECT_DUE, &[&handlers]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

fn progress(row: &Row) -> Progress {
    Progress {
        failures: row.get("failures"),
        suspect: row.get("suspect"),
        losses_alone: row.get("losses_alone"),
        since_first: Duration::try_from_secs_f64(
            row.get::<_, Option<f64>>("since_first").unwrap_or(0.0),
        )
        .unwrap_or_default(),
    }
}

pub(super) fn lease(row: &Row) -> Lease {
    let key = row
        .get::<_, Option<String>>("key")
        .and_then(|key| EventKey::stored(key).ok());
    Lease {
        event_id: row.get("event_id"),
        handler_id: row.get("handler_id"),
        run: row.get("run"),
        generation: row.get("generation"),
        losses: row.get("losses"),
        token: row.get("lease_token"),
        progress: progress(row),
        event: key.map(|key| LeasedEvent {
            source_id: row.get("source_id"),
            key,
            event_type: row.get("type"),
            entity: row.get("entity"),
            occurred_at: row
                .get::<_, Option<SystemTime>>("occurred_at")
                .and_then(|t| Timestamp::try_from(t).ok()),
            correlation_id: row.get("correlation_id"),
        }),
    }
}

/// How a delivery stands after a COMMIT whose reply was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadBack {
    /// It is finished, or somebody else's now.
    Settled,
    /// It is still under our token: the transaction rolled back.
    StillOurs,
}

/// Waits for the old transaction and tells how it ended.
pub(crate) async fn read_back(
    transaction: &Transaction<'_>,
    lease: &Lease,
) -> Result<ReadBack, StoreError> {
    let live = uncertain::look(transaction, lease.event_id, lease.handler_id).await?;
    let token = live.and_then(|live| live.lease_token);
    Ok(if token == Some(lease.token) {
        ReadBack::StillOurs
    } else {
        ReadBack::Settled
    })
}

/// Outcome and delete in one statement; every row must still be ours.
pub(crate) async fn finish(
    transaction: &Transaction<'_>,
    ended: &[Ended],
    by: DecidedBy,
) -> Result<(), StoreError> {
    if ended.is_empty() {
        return Ok(());
    }
    let events: Vec<Uuid> = ended.iter().map(|e| e.event_id).collect();
    let handlers: Vec<i32> = ended.iter().map(|e| e.handler_id).collect();
    let tokens: Vec<Uuid> = ended.iter().map(|e| e.token).collect();
    let results: Vec<&str> = ended.iter().map(|e| e.ending.as_str()).collect();
    let decided: Vec<&str> = ended.iter().map(|_| by.as_str()).collect();
    let reasons: Vec<Option<&str>> = ended.iter().map(|e| e.reason.as_deref()).collect();
    let resources: Vec<Option<&str>> = ended.iter().map(|e| e.resource.as_deref()).collect();
    let attempts: Vec<i32> = ended.iter().map(|e| e.attempts).collect();
    let changed = transaction
        .execute(
            FINISH,
            &[
                &events, &handlers, &tokens, &results, &decided, &reasons, &resources, &attempts,
            ],
        )
        .await?;
    expect_rows("delivery_finish", changed, ended.len())
}

/// Removes deliveries whose run has an outcome already; every row must still be ours.
pub(crate) async fn remove(
    transaction: &Transaction<'_>,
    leases: &[&Lease],
) -> Result<(), StoreError> {
    if leases.is_empty() {
        return Ok(());
    }
    let events: Vec<Uuid> = leases.iter().map(|l| l.event_id).collect();
    let handlers: Vec<i32> = leases.iter().map(|l| l.handler_id).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|l| l.token).collect();
    let changed = transaction
        .execute(REMOVE, &[&events, &handlers, &tokens])
        .await?;
    expect_rows("delivery_remove", changed, leases.len())
}

/// Puts deliveries back for later; every row must still be ours.
pub(crate) async fn retry_later(
    transaction: &Transaction<'_>,
    back: &[PutBack],
) -> Result<(), StoreError> {
    if back.is_empty() {
        return Ok(());
    }
    let events: Vec<Uuid> = back.iter().map(|b| b.event_id).collect();
    let handlers: Vec<i32> = back.iter().map(|b| b.handler_id).collect();
    let tokens: Vec<Uuid> = back.iter().map(|b| b.token).collect();
    let delays: Vec<f64> = back.iter().map(|b| b.delay.as_secs_f64()).collect();
    let changed = transaction
        .execute(RETRY, &[&events, &handlers, &tokens, &delays])
        .await?;
    expect_rows("delivery_retry", changed, back.len())
}

/// Marks a delivery whose lease was lost; `false` when somebody else has moved it meanwhile.
pub(crate) async fn suspect(
    transaction: &Transaction<'_>,
    event_id: Uuid,
    handler_id: i32,
    token: Uuid,
    losses_alone: i16,
) -> Result<bool, StoreError> {
    Ok(transaction
        .execute(SUSPECT, &[&event_id, &handler_id, &token, &losses_alone])
        .await?
        == 1)
}

/// Gives leases back that were not started. Those settled or lost meanwhile are left alone.
pub(crate) async fn give_back(
    connection: &Connection,
    leases: &[Lease],
) -> Result<u64, StoreError> {
    let events: Vec<Uuid> = leases.iter().map(|l| l.event_id).collect();
    let handlers: Vec<i32> = leases.iter().map(|l| l.handler_id).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|l| l.token).collect();
    connection
        .execute_alone(GIVE_BACK, &[&events, &handlers, &tokens])
        .await
}

/// Leases past their end with the time they were held, locked for the transaction. `event` is
/// not read.
pub(crate) async fn expired(
    transaction: &Transaction<'_>,
    handlers: &[i32],
    limit: usize,
) -> Result<Vec<(Lease, Duration)>, StoreError> {
    let rows = transaction
        .query(
            EXPIRED,
            &[&handlers, &i64::try_from(limit).unwrap_or(i64::MAX)],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| {
            let lease = Lease {
                event_id: row.get("event_id"),
                handler_id: row.get("handler_id"),
                run: row.get("run"),
                generation: row.get("generation"),
                losses: row.get("losses"),
                token: row.get("lease_token"),
                progress: progress(row),
                event: None,
            };
            (
                lease,
                Duration::try_from_secs_f64(row.get("held")).unwrap_or_default(),
            )
        })
        .collect())
}

/// Records tries.
pub(crate) async fn record_attempts(
    transaction: &Transaction<'_>,
    attempts: &[NewAttempt],
) -> Result<(), StoreError> {
    if attempts.is_empty() {
        return Ok(());
    }
    let events: Vec<Uuid> = attempts.iter().map(|a| a.event_id).collect();
    let handlers: Vec<i32> = attempts.iter().map(|a| a.handler_id).collect();
    let runs: Vec<i16> = attempts.iter().map(|a| a.run).collect();
    let tokens: Vec<Uuid> = attempts.iter().map(|a| a.token).collect();
    let verdicts: Vec<&str> = attempts.iter().map(|a| a.verdict).collect();
    let errors: Vec<&str> = attempts.iter().map(|a| a.error.as_str()).collect();
    let ages: Vec<f64> = attempts.iter().map(|a| a.age.as_secs_f64()).collect();
    transaction
        .execute(
            ATTEMPT,
            &[
                &events, &handlers, &runs, &tokens, &verdicts, &errors, &ages,
            ],
        )
        .await?;
    Ok(())
}

/// An answer that came after its lease was lost.
#[derive(Debug, Clone)]
pub(crate) struct LateAnswer {
    pub(crate) attempt: NewAttempt,
    /// Number of its try.
    pub(crate) number: i32,
    /// The result that it stands for, if it is definite.
    pub(crate) answer: Option<Ending>,
    pub(crate) resource: Option<String>,
}

/// Records an answer that came after its lease was lost; `false` when this very try was settled
/// and only the word of its COMMIT was lost.
pub(crate) async fn record_evidence(
    transaction: &Transaction<'_>,
    late: &LateAnswer,
) -> Result<bool, StoreError> {
    let attempt = &late.attempt;
    let recorded = transaction
        .execute(
            EVIDENCE,
            &[
                &attempt.event_id,
                &attempt.handler_id,
                &attempt.run,
                &attempt.token,
                &late.number,
                &attempt.error,
                &attempt.age.as_secs_f64(),
                &late.answer.map(Ending::as_str),
                &late.resource,
            ],
        )
        .await?;
    Ok(recorded == 1)
}
