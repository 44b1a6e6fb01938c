//! Deliveries whose call has an unknown result: begin, ask, end, release.
//!
//! Whoever decides locks the row first, then reads whether a late answer is there, then writes a
//! guarded change. A late answer is written under the same lock, so neither misses the other.

use std::iter;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::operation::{Response, Told};
use crate::domain::{DecidedBy, Ending};

use super::StoreError;
use super::connection::Connection;
use super::delivery::{self, Lease, NewAttempt};
use super::lanes;
use super::operation;
use super::response::{self, NewResponse};
use super::transaction::{Transaction, expect_rows};

const ASK: &str = include_str!("sql/uncertain_ask.sql");
const LOOK: &str = include_str!("sql/delivery_lock_any.sql");
const BEGIN: &str = include_str!("sql/delivery_uncertain.sql");
const CLAIM: &str = include_str!("sql/uncertain_claim.sql");
const KEEP: &str = include_str!("sql/attempt_evidence.sql");
const EVIDENCE: &str = include_str!("sql/uncertain_evidence.sql");
const FINISH: &str = include_str!("sql/uncertain_finish.sql");
const HOLD: &str = include_str!("sql/uncertain_hold.sql");
const RELEASE: &str = include_str!("sql/uncertain_release.sql");
const WAIT: &str = include_str!("sql/uncertain_wait.sql");
const WAKE: &str = include_str!("sql/uncertain_wake.sql");

/// A live delivery whose row is locked.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) lease_token: Option<Uuid>,
    pub(crate) state: String,
    pub(crate) run: i16,
    pub(crate) generation: i16,
    pub(crate) probes: i16,
    /// Who asked last.
    pub(crate) probe_token: Option<Uuid>,
    /// The call's lease, if it is uncertain.
    pub(crate) call_token: Option<Uuid>,
    pub(crate) run_at: Option<Timestamp>,
    pub(crate) lease_until: Option<Timestamp>,
    pub(crate) in_flight_until: Option<Timestamp>,
    pub(crate) uncertain_at: Option<Timestamp>,
    /// The lane that it is in.
    pub(crate) lane: Option<String>,
}

impl Live {
    pub(crate) fn is_uncertain(&self) -> bool {
        self.state == "uncertain"
    }

    /// Whether it cannot go on, and its lane waits for a person.
    pub(crate) fn is_held(&self) -> bool {
        self.state == "held"
    }
}

/// An uncertain delivery that is this node's to ask about.
#[derive(Debug, Clone)]
pub(crate) struct Doubt {
    /// What is known of it; its token is the probe's.
    pub(crate) lease: Lease,
    /// Probes asked, this one included.
    pub(crate) probes: i16,
    /// No call could be under way any more when it was taken.
    pub(crate) landed: bool,
}

/// A late answer that ends an uncertain delivery.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    pub(crate) answer: String,
    pub(crate) resource: Option<String>,
    /// What it brings to the client of an operation.
    pub(crate) told: Told,
    pub(crate) text: String,
    /// A later event says so, and not the call's own answer.
    pub(crate) by_event: bool,
    /// When it was kept.
    pub(crate) at: Option<Timestamp>,
}

/// Locks the delivery whatever its state; `None`: it is finished.
pub(crate) async fn look(
    transaction: &Transaction<'_>,
    event_id: Uuid,
    handler_id: i32,
) -> Result<Option<Live>, StoreError> {
    let rows = transaction.query(LOOK, &[&event_id, &handler_id]).await?;
    Ok(rows.first().map(live))
}

fn live(row: &Row) -> Live {
    // Infinity is no moment.
    let time = |column: &str| {
        row.try_get::<_, Option<SystemTime>>(column)
            .ok()
            .flatten()
            .and_then(|at| Timestamp::try_from(at).ok())
    };
    Live {
        lease_token: row.get("lease_token"),
        state: row.get("state"),
        run: row.get("run"),
        generation: row.get("generation"),
        probes: row.get("probes"),
        probe_token: row.get("probe_token"),
        call_token: row.get("call_token"),
        run_at: time("run_at"),
        lease_until: time("lease_until"),
        in_flight_until: time("in_flight_until"),
        uncertain_at: time("uncertain_at"),
        lane: row.get("lane"),
    }
}

/// Makes a delivery uncertain and records the try that did it; the row must be locked and still ours.
/// `first_probe` is counted from now; a late answer that is there already is read at once. `left_lane`:
/// the lane that it leaves, in which the next one is promoted.
pub(crate) async fn begin(
    transaction: &Transaction<'_>,
    attempt: &NewAttempt,
    losses_alone: i16,
    first_probe: Option<Duration>,
    left_lane: Option<&str>,
) -> Result<(), StoreError> {
    let known = evidence(
        transaction,
        attempt.event_id,
        attempt.handler_id,
        attempt.run,
        Some(attempt.token),
    )
    .await?;
    let first_probe = match known {
        Some(_) => Some(0.0),
        None => first_probe.map(|delay| delay.as_secs_f64()),
    };
    let changed = transaction
        .execute(
            BEGIN,
            &[
                &attempt.event_id,
                &attempt.handler_id,
                &attempt.token,
                &attempt.verdict,
                &attempt.error,
                &attempt.age.as_secs_f64(),
                &first_probe,
                &losses_alone,
                &left_lane.is_some(),
            ],
        )
        .await?;
    expect_rows("delivery_uncertain", changed, 1)?;
    lanes::promote_next(transaction, iter::once((attempt.handler_id, left_lane))).await
}

/// What may be asked about one handler's uncertain deliveries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) handler_id: i32,
    /// After which time another may ask.
    pub(crate) others_after: Duration,
    /// How many at the most.
    pub(crate) limit: usize,
}

/// Takes uncertain deliveries that are due.
pub(crate) async fn claim(
    connection: &Connection,
    room: &[Room],
) -> Result<Vec<Doubt>, StoreError> {
    let ids: Vec<i32> = room.iter().map(|room| room.handler_id).collect();
    let times: Vec<f64> = room
        .iter()
        .map(|room| room.others_after.as_secs_f64())
        .collect();
    let limits: Vec<i32> = room
        .iter()
        .map(|room| i32::try_from(room.limit).unwrap_or(i32::MAX))
        .collect();
    let rows = connection
        .query_by_index(CLAIM, &[&ids, &times, &limits])
        .await?;
    Ok(rows
        .iter()
        .map(|row| Doubt {
            lease: delivery::lease(row),
            probes: row.get("probes"),
            landed: row.get("landed"),
        })
        .collect())
}

/// The late answer that ends it, if there is one. `call`: the lease of the call in question; without one, only
/// an answer that says it was done counts.
pub(crate) async fn evidence(
    transaction: &Transaction<'_>,
    event_id: Uuid,
    handler_id: i32,
    run: i16,
    call: Option<Uuid>,
) -> Result<Option<Evidence>, StoreError> {
    let rows = transaction
        .query(EVIDENCE, &[&event_id, &handler_id, &run, &call])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(Evidence {
        answer: row.get(0),
        resource: row.get(1),
        told: Told {
            response: operation::response(row)?,
            external_id: row.get("external_id"),
        },
        text: row.get::<_, Option<String>>(2).unwrap_or_default(),
        at: Timestamp::try_from(row.get::<_, SystemTime>(3)).ok(),
        by_event: row.get("by_event"),
    }))
}

/// How a delivery that waited for a word ends.
#[derive(Debug)]
pub(crate) struct Decided<'d> {
    pub(crate) ending: Ending,
    pub(crate) by: DecidedBy,
    pub(crate) reason: Option<&'d str>,
    pub(crate) resource: Option<&'d str>,
    pub(crate) external_id: Option<&'d str>,
    /// What the client of an operation is answered.
    pub(crate) response: Option<&'d Response>,
}

/// Outcome and delete, then the next of its lane; the row must be locked and wait for a word.
pub(crate) async fn finish(
    transaction: &Transaction<'_>,
    (event_id, handler_id, live): (Uuid, i32, &Live),
    decided: &Decided<'_>,
) -> Result<(), StoreError> {
    let changed = transaction
        .execute(
            FINISH,
            &[
                &event_id,
                &handler_id,
                &live.run,
                &decided.ending.as_str(),
                &decided.by.as_str(),
                &decided.reason,
                &decided.resource,
                &live.state,
                &decided.external_id,
            ],
        )
        .await?;
    expect_rows("uncertain_finish", changed, 1)?;
    if let Some(response) = decided.response {
        let answer = NewResponse {
            event_id,
            handler_id,
            run: live.run,
            response,
        };
        response::write(transaction, &[answer]).await?;
    }
    lanes::promote_next(transaction, iter::once((handler_id, live.lane.as_deref()))).await
}

/// Keeps the head of a lane where it is, for a person to decide; the row must be locked and uncertain.
pub(crate) async fn hold(
    transaction: &Transaction<'_>,
    (event_id, handler_id, run): (Uuid, i32, i16),
    reason: &str,
) -> Result<(), StoreError> {
    let changed = transaction
        .execute(HOLD, &[&event_id, &handler_id, &run, &reason])
        .await?;
    expect_rows("uncertain_hold", changed, 1)
}

/// Makes it ready again; `false` when the probe's word no longer counts or the call may still be under
/// way. `probe_token` is `None` for a person's word.
pub(crate) async fn release(
    transaction: &Transaction<'_>,
    (event_id, handler_id, run): (Uuid, i32, i16),
    probe_token: Option<Uuid>,
) -> Result<bool, StoreError> {
    let changed = transaction
        .execute(RELEASE, &[&event_id, &handler_id, &run, &probe_token])
        .await?;
    Ok(changed == 1)
}

/// Has the receiver asked again, at once and then as the schedule says; the row must be locked and uncertain.
pub(crate) async fn ask(
    transaction: &Transaction<'_>,
    (event_id, handler_id, run): (Uuid, i32, i16),
) -> Result<(), StoreError> {
    let changed = transaction
        .execute(ASK, &[&event_id, &handler_id, &run])
        .await?;
    expect_rows("uncertain_ask", changed, 1)
}

/// When an uncertain delivery is looked at next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// So long after it became uncertain, or a person had it asked again.
    At(Duration),
    /// When its call can no longer be under way.
    Landed,
    /// When a late answer comes, or a person does.
    Never,
}

/// Puts off the next question, by `gap` at least; `false` when another has asked since.
pub(crate) async fn wait(
    transaction: &Transaction<'_>,
    lease: &Lease,
    next: Next,
    gap: Duration,
) -> Result<bool, StoreError> {
    let at = match next {
        Next::At(at) => Some(at.as_secs_f64()),
        Next::Landed | Next::Never => None,
    };
    let landed = next == Next::Landed;
    let changed = transaction
        .execute(
            WAIT,
            &[
                &lease.event_id,
                &lease.handler_id,
                &lease.run,
                &lease.token,
                &at,
                &landed,
                &gap.as_secs_f64(),
            ],
        )
        .await?;
    Ok(changed == 1)
}

/// Has a late answer read at once, if its delivery is uncertain; the row must be locked.
pub(crate) async fn wake(
    transaction: &Transaction<'_>,
    late: &NewAttempt,
) -> Result<bool, StoreError> {
    wake_one(transaction, (late.event_id, late.handler_id, late.run)).await
}

/// Has what is kept of a delivery read at once, if it is uncertain; the row must be locked.
pub(crate) async fn wake_one(
    transaction: &Transaction<'_>,
    (event_id, handler_id, run): (Uuid, i32, i16),
) -> Result<bool, StoreError> {
    let changed = transaction
        .execute(WAKE, &[&event_id, &handler_id, &run])
        .await?;
    Ok(changed == 1)
}

/// An answer that came after its lease was lost.
#[derive(Debug, Clone)]
pub(crate) struct LateAnswer {
    pub(crate) attempt: NewAttempt,
    /// The result that it stands for, if it is definite.
    pub(crate) answer: Option<Ending>,
    pub(crate) resource: Option<String>,
    /// What it brings to the client of an operation.
    pub(crate) told: Told,
}

/// Records an answer that came after its lease was lost; `false` when this very try was settled
/// and only the word of its COMMIT was lost.
pub(crate) async fn record_evidence(
    transaction: &Transaction<'_>,
    late: &LateAnswer,
) -> Result<bool, StoreError> {
    let attempt = &late.attempt;
    let response = late.told.response.as_ref();
    let recorded = transaction
        .execute(
            KEEP,
            &[
                &attempt.event_id,
                &attempt.handler_id,
                &attempt.run,
                &attempt.token,
                &attempt.error,
                &attempt.age.as_secs_f64(),
                &late.answer.map(Ending::as_str),
                &late.resource,
                &late.told.external_id,
                &response.map(|response| i32::from(response.status)),
                &response.map(response::headers),
                &response.map(|response| response.body.as_ref()),
            ],
        )
        .await?;
    Ok(recorded == 1)
}
