//! One settle transaction: lock the rows, read the outcomes, run, write the transitions, COMMIT.

use std::time::{Duration, Instant};

use crate::domain::{DecidedBy, Ending, Progress, Transition, Verdict, delivery::next};
use crate::store::StoreError;
use crate::store::connection::Connection;
use crate::store::delivery::{self, Ended, Held, Lease, NewAttempt, PutBack};
use crate::store::latest::{self, Applied};
use crate::store::locked::{self, Locked, Plans};
use crate::store::transaction::{Limits, Transaction};
use crate::telemetry;

use super::ActiveHandler;
use super::newer::Versioned;

/// The transitions of one transaction, collected and written together.
#[derive(Debug, Default)]
pub(super) struct Transitions {
    ended: Vec<Ended>,
    back: Vec<PutBack>,
    postponed: Vec<PutBack>,
    /// What was applied to objects, and where its versions are read from.
    applied: Vec<Applied>,
    read_from: String,
    held: Vec<Held>,
    attempts: Vec<NewAttempt>,
    /// An answer after the lease was lost.
    evidence: Option<NewAttempt>,
}

impl Transitions {
    /// Decides what a verdict makes of a lease.
    pub(super) fn decide(
        &mut self,
        handler: &ActiveHandler,
        lease: &Lease,
        verdict: &Verdict,
        began: Instant,
    ) {
        // Time passed since the claim counts too.
        let progress = Progress {
            since_first: lease.progress.since_first + began.elapsed(),
            since_not_yet: lease.progress.since_not_yet + began.elapsed(),
            ..lease.progress
        };
        let transition = next(progress, verdict, &handler.spec.policy, rand::random());
        let (kind, error) = match verdict {
            Verdict::Retry { error, .. } => ("retry", Some(error)),
            Verdict::NotYet { reason, .. } => ("not_yet", Some(reason)),
            Verdict::Permanent { error } => ("permanent", Some(error)),
            _ => ("", None),
        };
        if let Some(error) = error {
            self.attempts.push(NewAttempt {
                event_id: lease.event_id,
                handler_id: lease.handler_id,
                run: lease.run,
                token: lease.token,
                verdict: kind,
                error: error.clone(),
                age: began.elapsed(),
                correlation_id: lease.correlation_id(),
            });
        }
        match transition {
            Transition::Finish {
                ending,
                reason,
                resource,
            } => self.ended.push(Ended {
                event_id: lease.event_id,
                handler_id: lease.handler_id,
                token: lease.token,
                ending,
                reason,
                resource,
                attempts: lease.attempt(),
                lane: lease.lane.clone(),
                correlation_id: lease.correlation_id(),
            }),
            Transition::Hold { reason } => self.held.push(Held {
                event_id: lease.event_id,
                handler_id: lease.handler_id,
                token: lease.token,
                reason,
                lost: false,
                correlation_id: lease.correlation_id(),
            }),
            Transition::RetryLater { delay } => self.back.push(PutBack {
                event_id: lease.event_id,
                handler_id: lease.handler_id,
                token: lease.token,
                delay,
                lane: lease.lane.clone(),
            }),
            Transition::Postpone { delay } => self.postponed.push(PutBack {
                event_id: lease.event_id,
                handler_id: lease.handler_id,
                token: lease.token,
                delay,
                lane: lease.lane.clone(),
            }),
            // Only the reaper and `lost` make suspects, in transactions of their own.
            Transition::Suspect { .. } => {}
        }
    }

    /// Keeps an answer that came after its lease was lost: the transition is refused, the
    /// evidence never is.
    pub(super) fn evidence(&mut self, lease: &Lease, verdict: &Verdict, began: Instant) {
        let answer = match verdict {
            Verdict::Done { .. } => "done".to_owned(),
            Verdict::Failed { reason } | Verdict::Skip { reason } => reason.clone(),
            Verdict::Retry { error, .. } | Verdict::Permanent { error } => error.clone(),
            Verdict::NotYet { reason, .. } => format!("not yet: {reason}"),
            Verdict::Lost { .. } => return,
        };
        self.evidence = Some(NewAttempt {
            event_id: lease.event_id,
            handler_id: lease.handler_id,
            run: lease.run,
            token: lease.token,
            verdict: "evidence",
            error: format!("answer after the lease was lost: {answer}"),
            age: began.elapsed(),
            correlation_id: lease.correlation_id(),
        });
    }

    /// Keeps that an event was applied to its object.
    pub(super) fn applied(&mut self, handler: &ActiveHandler, versioned: &Versioned<'_>) {
        if let Some(by) = &handler.spec.apply_if_newer {
            self.read_from = by.to_string();
            self.applied.push(Applied {
                entity: versioned.entity.to_owned(),
                version: versioned.version.as_str().to_owned(),
                event_id: versioned.event_id,
            });
        }
    }

    /// Writes everything; each row must still be ours.
    pub(super) async fn write(
        &mut self,
        handler: &ActiveHandler,
        transaction: &Transaction<'_>,
    ) -> Result<(), StoreError> {
        if let Some(attempt) = &self.evidence
            && !delivery::record_evidence(transaction, attempt).await?
        {
            self.evidence = None;
        }
        latest::apply(transaction, handler.id, &self.applied, &self.read_from).await?;
        delivery::record_attempts(transaction, &self.attempts).await?;
        delivery::finish(transaction, &self.ended, DecidedBy::Handler).await?;
        delivery::hold(transaction, &self.held).await?;
        delivery::postpone(transaction, &self.postponed).await?;
        delivery::retry_later(transaction, &self.back).await
    }

    /// Counts and logs what the committed transaction did.
    pub(super) fn report(&self, handler: &ActiveHandler) {
        for ended in &self.ended {
            telemetry::finished(&handler.spec.name, ended.ending);
            if ended.ending == Ending::Dead {
                tracing::error!(
                    event.id = %ended.event_id, correlation_id = %ended.correlation_id, handler = %handler.spec.name, attempts = ended.attempts,
                    reason = ended.reason.as_deref().unwrap_or_default(), "dead letter"
                );
            } else {
                tracing::debug!(event.id = %ended.event_id, correlation_id = %ended.correlation_id, handler = %handler.spec.name, result = ended.ending.as_str(), "delivery finished");
            }
        }
        for held in &self.held {
            telemetry::held(&handler.spec.name);
            tracing::error!(
                event.id = %held.event_id, correlation_id = %held.correlation_id, handler = %handler.spec.name, reason = %held.reason,
                "held: its lane waits for a person"
            );
        }
        if let Some(late) = &self.evidence {
            tracing::warn!(
                event.id = %late.event_id, correlation_id = %late.correlation_id, handler = %handler.spec.name, answer = %late.error,
                "kept as evidence"
            );
        }
        for attempt in &self.attempts {
            telemetry::attempt_failed(&handler.spec.name);
            tracing::warn!(
                event.id = %attempt.event_id, correlation_id = %attempt.correlation_id, handler = %handler.spec.name, verdict = attempt.verdict, error = %attempt.error,
                "attempt failed"
            );
        }
    }
}

/// Limits of a settle transaction, from the handler's time-out.
pub(super) fn limits(handler: &ActiveHandler) -> Limits {
    let timeout = handler.spec.timeout;
    Limits {
        statement: timeout + Duration::from_millis(250),
        idle: timeout + Duration::from_secs(5),
        lock: timeout,
    }
}

/// Begins the settle transaction and locks the rows. `plans` tells whose statements come next.
pub(super) async fn begin<'c>(
    connection: &'c Connection,
    handler: &ActiveHandler,
    leases: &[Lease],
    plans: Plans,
) -> Result<(Transaction<'c>, Locked), StoreError> {
    let (transaction, locked) = locked::begin(connection, limits(handler), leases, plans).await?;
    // The run is finished already: whoever settles it, only the row is left over.
    let left_over: Vec<&Lease> = locked
        .finished
        .iter()
        .filter_map(|i| leases.get(*i))
        .collect();
    if let Err(error) = delivery::remove(&transaction, &left_over).await {
        transaction.rollback(&error).await;
        return Err(error);
    }
    for _ in locked.ours.len() + locked.finished.len()..leases.len() {
        telemetry::lease_lost(&handler.spec.name);
    }
    Ok((transaction, locked))
}
