//! Leases past their end: their holder is gone, or too late.

use std::time::Duration;

use crate::domain::operation::Told;
use crate::domain::{DecidedBy, Ending, Transition, Verdict, delivery::next};
use crate::store::delivery::{self, Ended, Held, Lease, NewAttempt};
use crate::store::transaction::{Limits, Transaction};
use crate::store::uncertain;
use crate::store::{Store, StoreError};
use crate::store::{lanes, locked};
use crate::telemetry;

use super::{Active, ActiveHandler, Context, settle};

const INTERVAL: Duration = Duration::from_secs(1);
const BATCH: usize = 200;

pub(super) async fn run(context: Context) {
    while !context.is_stopping() {
        let active = context.registry.current();
        if !active.handlers.is_empty() {
            match sweep(&context.store, &active).await {
                // A full batch: more are waiting.
                Ok(reaped) if reaped >= BATCH => continue,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(error = %error, "reaper failed");
                    context.store.made_missing_partitions(&error).await;
                }
            }
        }
        tokio::time::sleep(INTERVAL.mul_f64(0.5 + rand::random::<f64>())).await;
    }
}

/// One transaction: rows that are being settled are locked by their worker and skipped; those
/// taken stay locked until the decision is written.
pub(crate) async fn sweep(store: &Store, active: &Active) -> Result<usize, StoreError> {
    let handlers: Vec<i32> = active.handlers.keys().copied().collect();
    let connection = store.admin().await?;
    store.prove_names(&connection).await?;
    let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
    let swept = async {
        let expired = delivery::expired(&transaction, &handlers, BATCH).await?;
        let mut reaped = Vec::with_capacity(expired.len());
        for (lease, held) in expired {
            transaction.savepoint().await?;
            // A suspect was claimed alone, so its loss counts towards the crash cap.
            let written = lost(&transaction, active, &lease, lease.progress.suspect, held).await;
            match written {
                Ok(became) => {
                    transaction.release().await?;
                    reaped.push((lease, Some(became)));
                }
                // One row that cannot be written must not keep the leases of all others.
                Err(error) if is_the_rows_own(&error) => {
                    transaction.back_to_savepoint().await?;
                    tracing::error!(error = %error, event.id = %lease.event_id, "a lost lease cannot be reaped");
                    reaped.push((lease, None));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(reaped)
    }
    .await;
    let looked: Vec<_> = lanes::of(swept.iter().flatten().map(|(lease, _)| lease)).collect();
    let ended = transaction.end(swept).await;
    store.recheck_lanes(looked);
    let reaped = ended?;
    for (lease, became) in &reaped {
        if let (Some(handler), Some(became)) = (active.handlers.get(&lease.handler_id), became) {
            telemetry::lease_lost(&handler.spec.name);
            tracing::warn!(event.id = %lease.event_id, handler = %handler.spec.name, suspect = lease.progress.suspect, "lease ran out");
            became.report(handler, lease);
        }
    }
    Ok(reaped.len())
}

/// Errors of the values in one row: class 22 and 54, and a key that exists.
fn is_the_rows_own(error: &StoreError) -> bool {
    error.sqlstate().is_some_and(|code| {
        let code = code.code();
        code.starts_with("22") || code.starts_with("54") || code == "23505"
    })
}

/// What became of a delivery whose lease was lost: counted and logged by [`Became::report`] once it is committed.
#[must_use]
#[derive(Debug)]
pub(super) enum Became {
    /// It is run again, or it was finished before.
    Nothing,
    Uncertain(NewAttempt),
    Dead(Ending),
    Held(Held),
}

impl Became {
    pub(super) fn report(&self, handler: &ActiveHandler, lease: &Lease) {
        let name = &handler.spec.name;
        match self {
            Self::Nothing => {}
            Self::Uncertain(attempt) => settle::uncertain_now(handler, attempt),
            Self::Dead(ending) => {
                tracing::error!(event.id = %lease.event_id, handler = %name, "dead letter: poison");
                telemetry::finished(name, *ending);
            }
            Self::Held(held) => {
                tracing::error!(event.id = %held.event_id, handler = %name, reason = %held.reason, "held: its lane waits for a person");
                telemetry::held(name);
            }
        }
    }
}

/// Writes what a lost lease makes of a delivery: uncertain where a call may have been made that must not
/// be repeated; else a suspect, or poison after too many losses while it ran alone. The caller's
/// transaction holds the row's lock.
pub(super) async fn lost(
    transaction: &Transaction<'_>,
    active: &Active,
    lease: &Lease,
    alone: bool,
    held: Duration,
) -> Result<Became, StoreError> {
    let Some(handler) = active.handlers.get(&lease.handler_id) else {
        return Ok(Became::Nothing);
    };
    if locked::has_outcome(transaction, lease).await? {
        delivery::remove(transaction, &[lease]).await?;
        return Ok(Became::Nothing);
    }
    let mut attempt = NewAttempt {
        event_id: lease.event_id,
        handler_id: lease.handler_id,
        run: lease.run,
        token: lease.token,
        verdict: "lost",
        error: if alone {
            "the lease was lost while it ran alone"
        } else {
            "the lease was lost among others"
        }
        .to_owned(),
        age: held,
        correlation_id: lease.correlation_id(),
    };
    let transition = next(
        lease.progress,
        &Verdict::Lost { alone },
        &handler.spec.policy,
        handler.on_unknown(),
        0.0,
    );
    if let Transition::Uncertain { losses_alone } = transition {
        attempt.error.push_str(", and its call may have been made");
        let first = settle::first_probe(handler);
        let left = settle::left_lane(handler, lease);
        uncertain::begin(transaction, &attempt, losses_alone, first, left).await?;
        return Ok(Became::Uncertain(attempt));
    }
    delivery::record_attempts(transaction, &[attempt]).await?;
    Ok(match transition {
        Transition::Finish {
            ending,
            reason,
            resource,
        } => {
            let told = Told::default();
            let ended = Ended {
                response: handler.response(ending, DecidedBy::Handler, None, &told),
                external_id: None,
                event_id: lease.event_id,
                handler_id: lease.handler_id,
                run: lease.run,
                token: lease.token,
                ending,
                reason,
                resource,
                attempts: lease.attempt(),
                lane: lease.lane.clone(),
                correlation_id: lease.correlation_id(),
            };
            delivery::finish(transaction, &[ended], DecidedBy::Handler).await?;
            Became::Dead(ending)
        }
        Transition::Suspect { losses_alone } => {
            delivery::suspect(
                transaction,
                lease.event_id,
                lease.handler_id,
                lease.token,
                losses_alone,
            )
            .await?;
            Became::Nothing
        }
        Transition::Hold { reason } => {
            let held = Held {
                event_id: lease.event_id,
                handler_id: lease.handler_id,
                token: lease.token,
                reason,
                lost: true,
                correlation_id: lease.correlation_id(),
            };
            delivery::hold(transaction, std::slice::from_ref(&held)).await?;
            Became::Held(held)
        }
        Transition::Uncertain { .. }
        | Transition::RetryLater { .. }
        | Transition::Postpone { .. } => Became::Nothing,
    })
}
