//! The life of a delivery in the table: claim, lock, finish, put back, reap.
//!
//! Every write proves its lease token and counts its rows.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::operation::Response;
use crate::domain::{DecidedBy, Ending, EventKey, Priority, Progress};

use super::StoreError;
use super::cap::{self, Token};
use super::connection::Connection;
use super::lanes;
use super::quota::{Quota, Shares};
use super::response::{self, NewResponse};
use super::transaction::{Params, Transaction, expect_rows};
use super::uncertain;

const CLAIM: &str = include_str!("sql/delivery_claim.sql");
const CLAIM_SUSPECT: &str = include_str!("sql/delivery_claim_suspect.sql");
const SUSPECT_DUE: &str = include_str!("sql/delivery_suspect_due.sql");
const FINISH: &str = include_str!("sql/delivery_finish.sql");
const HOLD: &str = include_str!("sql/delivery_hold.sql");
const REMOVE: &str = include_str!("sql/delivery_remove.sql");
const RETRY: &str = include_str!("sql/delivery_retry.sql");
const NOT_YET: &str = include_str!("sql/delivery_not_yet.sql");
const SUSPECT: &str = include_str!("sql/delivery_suspect.sql");
const GIVE_BACK: &str = include_str!("sql/delivery_give_back.sql");
const STRAY: &str = include_str!("sql/delivery_stray.sql");
const DEFER: &str = include_str!("sql/delivery_defer.sql");
const EXPIRED: &str = include_str!("sql/delivery_expired.sql");
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
    pub(crate) priority: Priority,
    pub(crate) progress: Progress,
    /// The lane whose head it is.
    pub(crate) lane: Option<String>,
    /// What it has taken of its handler's rate, where it has one and the claim was here.
    pub(crate) rate_token: Option<Token>,
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
        i32::from(self.progress.failures)
            + i32::from(self.progress.not_yet)
            + i32::from(self.losses)
            + 1
    }
}

/// A delivery that ends.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) event_id: Uuid,
    pub(crate) handler_id: i32,
    pub(crate) run: i16,
    pub(crate) token: Uuid,
    pub(crate) ending: Ending,
    pub(crate) reason: Option<String>,
    pub(crate) resource: Option<String>,
    pub(crate) attempts: i32,
    /// The id that the outside world gave it.
    pub(crate) external_id: Option<String>,
    /// What the client of an operation is answered.
    pub(crate) response: Option<Response>,
    /// The lane in which the next one follows.
    pub(crate) lane: Option<String>,
    /// For the log line after the commit.
    pub(crate) correlation_id: Uuid,
}

/// A head that cannot succeed, whose lane waits for a person.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) event_id: Uuid,
    pub(crate) handler_id: i32,
    pub(crate) token: Uuid,
    pub(crate) reason: String,
    /// Whether its last try was lost; else it failed.
    pub(crate) lost: bool,
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
    /// The lane that it is the head of.
    pub(crate) lane: Option<String>,
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
    let Shares {
        handlers,
        priorities,
        counts,
        leases,
        in_flight,
    } = Shares::of(quotas);
    let rows = connection
        .query_by_index(
            CLAIM,
            &[&handlers, &priorities, &counts, &leases, &in_flight],
        )
        .await?;
    claimed(&rows, quotas)
}

/// The same in a transaction that does more.
pub(crate) async fn claim_within(
    transaction: &Transaction<'_>,
    quotas: &[Quota],
) -> Result<Vec<Lease>, StoreError> {
    let Shares {
        handlers,
        priorities,
        counts,
        leases,
        in_flight,
    } = Shares::of(quotas);
    let rows = transaction
        .query(
            CLAIM,
            &[&handlers, &priorities, &counts, &leases, &in_flight],
        )
        .await?;
    claimed(&rows, quotas)
}

fn claimed(rows: &[Row], quotas: &[Quota]) -> Result<Vec<Lease>, StoreError> {
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

/// Leases one suspect, as durably as [`claim`]: a crash of PostgreSQL must not forget that its call may be out.
pub(crate) async fn claim_suspect(
    connection: &Connection,
    quotas: &[Quota],
) -> Result<Option<Lease>, StoreError> {
    let handlers: Vec<i32> = quotas.iter().map(|q| q.handler_id).collect();
    let leases: Vec<f64> = quotas.iter().map(|q| q.lease.as_secs_f64()).collect();
    let in_flight: Vec<Option<f64>> = quotas.iter().map(Quota::in_flight_s).collect();
    let rows = connection
        .query_by_index(CLAIM_SUSPECT, &[&handlers, &leases, &in_flight])
        .await?;
    Ok(rows.first().map(lease))
}

/// The same in a transaction that does more; one lease or none.
pub(crate) async fn claim_suspect_within(
    transaction: &Transaction<'_>,
    quotas: &[Quota],
) -> Result<Vec<Lease>, StoreError> {
    let handlers: Vec<i32> = quotas.iter().map(|q| q.handler_id).collect();
    let leases: Vec<f64> = quotas.iter().map(|q| q.lease.as_secs_f64()).collect();
    let in_flight: Vec<Option<f64>> = quotas.iter().map(Quota::in_flight_s).collect();
    let rows = transaction
        .query(CLAIM_SUSPECT, &[&handlers, &leases, &in_flight])
        .await?;
    Ok(rows.iter().map(lease).collect())
}

/// Which of these handlers have a suspect that is due.
pub(crate) async fn suspects_due(
    connection: &Connection,
    handlers: &[i32],
) -> Result<Vec<i32>, StoreError> {
    let rows = connection.query_alone(SUSPECT_DUE, &[&handlers]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Which of these priorities have something due.
pub(crate) async fn stray(
    connection: &Connection,
    others: &[(i32, Priority)],
) -> Result<Vec<(i32, Priority)>, StoreError> {
    let handlers: Vec<i32> = others.iter().map(|(id, _)| *id).collect();
    let priorities: Vec<i16> = others.iter().map(|(_, p)| p.number()).collect();
    let rows = connection
        .query_by_index(STRAY, &[&handlers, &priorities])
        .await?;
    let stray = |row: &Row| (row.get(0), Priority::stored(row.get(1)));
    Ok(rows.iter().map(stray).collect())
}

fn progress(row: &Row) -> Progress {
    Progress {
        failures: row.get("failures"),
        suspect: row.get("suspect"),
        losses_alone: row.get("losses_alone"),
        laned: row.get::<_, Option<&str>>("lane").is_some(),
        not_yet: row.get("not_yet"),
        since_not_yet: elapsed(row, "since_not_yet"),
        since_first: elapsed(row, "since_first"),
    }
}

/// Seconds in a column, by the database's clock.
fn elapsed(row: &Row, column: &str) -> Duration {
    let seconds: Option<f64> = row.get(column);
    Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default()
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
        priority: Priority::stored(row.get("priority")),
        progress: progress(row),
        lane: row.get("lane"),
        rate_token: None,
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

/// Outcome and delete in one statement, then the next of their lanes; every row must still be ours.
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
    let external_ids: Vec<Option<&str>> = ended.iter().map(|e| e.external_id.as_deref()).collect();
    let changed = transaction
        .execute(
            FINISH,
            &[
                &events,
                &handlers,
                &tokens,
                &results,
                &decided,
                &reasons,
                &resources,
                &attempts,
                &external_ids,
            ],
        )
        .await?;
    expect_rows("delivery_finish", changed, ended.len())?;
    let responses = ended.iter().filter_map(|e| {
        Some(NewResponse {
            event_id: e.event_id,
            handler_id: e.handler_id,
            run: e.run,
            response: e.response.as_ref()?,
        })
    });
    response::write(transaction, &responses.collect::<Vec<_>>()).await?;
    let lanes = ended.iter().map(|e| (e.handler_id, e.lane.as_deref()));
    lanes::promote_next(transaction, lanes).await
}

/// Keeps heads where they are, for a person to decide; every row must still be ours.
pub(crate) async fn hold(transaction: &Transaction<'_>, held: &[Held]) -> Result<(), StoreError> {
    if held.is_empty() {
        return Ok(());
    }
    let events: Vec<Uuid> = held.iter().map(|h| h.event_id).collect();
    let handlers: Vec<i32> = held.iter().map(|h| h.handler_id).collect();
    let tokens: Vec<Uuid> = held.iter().map(|h| h.token).collect();
    let reasons: Vec<&str> = held.iter().map(|h| h.reason.as_str()).collect();
    let lost: Vec<bool> = held.iter().map(|h| h.lost).collect();
    let changed = transaction
        .execute(HOLD, &[&events, &handlers, &tokens, &reasons, &lost])
        .await?;
    expect_rows("delivery_hold", changed, held.len())
}

/// Removes deliveries whose run has an outcome already, then promotes the next of their lanes; every row must still be ours.
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
    expect_rows("delivery_remove", changed, leases.len())?;
    let lanes = leases.iter().map(|l| (l.handler_id, l.lane.as_deref()));
    lanes::promote_next(transaction, lanes).await
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

/// Puts deliveries back whose time has not come, behind those that wait in their lanes; every row
/// must still be ours.
pub(crate) async fn postpone(
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
        .execute(NOT_YET, &[&events, &handlers, &tokens, &delays])
        .await?;
    expect_rows("delivery_not_yet", changed, back.len())?;
    let lanes = back.iter().map(|b| (b.handler_id, b.lane.as_deref()));
    lanes::promote_next(transaction, lanes).await
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

/// Gives leases of one claim back that were not started, and their tokens. Those settled or lost meanwhile are left alone.
pub(crate) async fn give_back(
    connection: &Connection,
    leases: &[Lease],
) -> Result<u64, StoreError> {
    let events: Vec<Uuid> = leases.iter().map(|l| l.event_id).collect();
    let handlers: Vec<i32> = leases.iter().map(|l| l.handler_id).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|l| l.token).collect();
    let params: Params<'_> = &[&events, &handlers, &tokens];
    cap::put_back(connection, leases, GIVE_BACK, params).await
}

/// Puts leases of one claim back that have to wait, each for its time, and their tokens. Those lost meanwhile are left alone.
pub(crate) async fn defer(
    connection: &Connection,
    leases: &[Lease],
    delays: &[Duration],
) -> Result<u64, StoreError> {
    let events: Vec<Uuid> = leases.iter().map(|l| l.event_id).collect();
    let handlers: Vec<i32> = leases.iter().map(|l| l.handler_id).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|l| l.token).collect();
    let delays: Vec<f64> = delays.iter().map(Duration::as_secs_f64).collect();
    let params: Params<'_> = &[&events, &handlers, &tokens, &delays];
    cap::put_back(connection, leases, DEFER, params).await
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
                priority: Priority::stored(row.get("priority")),
                progress: progress(row),
                lane: row.get("lane"),
                rate_token: None,
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
