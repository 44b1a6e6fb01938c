//! One settle transaction: lock the rows, read the outcomes, run, write the transitions, COMMIT.

use std::time::{Duration, Instant};

use crate::domain::operation::Told;
use crate::domain::{
    DecidedBy, Ending, OnUncertain, OnUnknown, Progress, Transition, Verdict, delivery::next,
};
use crate::store::connection::Connection;
use crate::store::delivery::{self, Ended, Held, Lease, NewAttempt, PutBack};
use crate::store::latest::{self, Applied};
use crate::store::locked::{self, Locked, Plans};
use crate::store::transaction::{Limits, Transaction};
use crate::store::uncertain::{self, LateAnswer};
use crate::store::{StoreError, Wake};
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
    /// A call whose result is not known.
    unsure: Option<Unsure>,
    /// An answer after the lease was lost.
    evidence: Option<LateAnswer>,
}

/// A delivery that becomes uncertain.
#[derive(Debug)]
struct Unsure {
    attempt: NewAttempt,
    losses_alone: i16,
    first_probe: Option<Duration>,
    /// The lane that it leaves.
    left_lane: Option<String>,
}

/// When the receiver of a call with an unknown result is asked first; `None`: it is not.
pub(super) fn first_probe(handler: &ActiveHandler) -> Option<Duration> {
    match handler.on_unknown() {
        OnUnknown::Probe => Some(handler.spec.probes.first()),
        OnUnknown::Hold | OnUnknown::Retry => None,
    }
}

/// The lane that a delivery leaves when it becomes uncertain; `None`: it stays where it is.
pub(super) fn left_lane<'l>(handler: &ActiveHandler, lease: &'l Lease) -> Option<&'l str> {
    match handler.spec.policy.on_uncertain {
        OnUncertain::Wait => None,
        OnUncertain::Skip => lease.lane.as_deref(),
    }
}

/// The result that a call's answer stands for; `None` where it is of no more than this one try.
pub(super) fn answer(verdict: &Verdict) -> Option<Ending> {
    match verdict {
        Verdict::Done { .. } => Some(Ending::Succeeded),
        Verdict::Failed { .. } => Some(Ending::Failed),
        Verdict::Skip { .. } => Some(Ending::Skipped),
        Verdict::Permanent { .. } => Some(Ending::Dead),
        Verdict::Retry { .. }
        | Verdict::NotYet { .. }
        | Verdict::Unknown { .. }
        | Verdict::Lost { .. } => None,
    }
}

/// What evidence begins with; the answer follows.
pub(super) const LATE: &str = "answer after the lease was lost: ";

impl Transitions {
    /// Decides what a verdict makes of a lease.
    pub(super) fn decide(
        &mut self,
        handler: &ActiveHandler,
        lease: &Lease,
        (verdict, told): (&Verdict, &Told),
        began: Instant,
    ) {
        // Time passed since the claim counts too.
        let progress = Progress {
            since_first: lease.progress.since_first + began.elapsed(),
            since_not_yet: lease.progress.since_not_yet + began.elapsed(),
            ..lease.progress
        };
        let transition = next(
            progress,
            verdict,
            &handler.spec.policy,
            handler.on_unknown(),
            rand::random(),
        );
        let recorded = |verdict, error: &str| NewAttempt {
            event_id: lease.event_id,
            handler_id: lease.handler_id,
            run: lease.run,
            token: lease.token,
            verdict,
            error: error.to_owned(),
            age: began.elapsed(),
            correlation_id: lease.correlation_id(),
        };
        match (verdict, &transition) {
            (Verdict::Unknown { error, .. }, Transition::Uncertain { losses_alone }) => {
                self.unsure = Some(Unsure {
                    attempt: recorded("unknown", error),
                    losses_alone: *losses_alone,
                    first_probe: first_probe(handler),
                    left_lane: left_lane(handler, lease).map(str::to_owned),
                });
            }
            (Verdict::Retry { error, .. } | Verdict::Unknown { error, .. }, _) => {
                self.attempts.push(recorded("retry", error));
            }
            (Verdict::NotYet { reason, .. }, _) => {
                self.attempts.push(recorded("not_yet", reason));
            }
            (Verdict::Permanent { error }, _) => {
                self.attempts.push(recorded("permanent", error));
            }
            _ => {}
        }
        match transition {
            Transition::Finish {
                ending,
                reason,
                resource,
            } => self.ended.push(Ended {
                response: handler.response(ending, DecidedBy::Handler, resource.as_deref(), told),
                external_id: told.external_id.clone(),
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
            // Written above. Only the reaper and `lost` make suspects, in transactions of their own.
            Transition::Uncertain { .. } | Transition::Suspect { .. } => {}
        }
    }

    /// Keeps an answer that came after its lease was lost: the transition is refused, the
    /// evidence never is.
    pub(super) fn evidence(
        &mut self,
        handler: &ActiveHandler,
        lease: &Lease,
        (verdict, told): (&Verdict, &Told),
        began: Instant,
    ) {
        let text = match verdict {
            Verdict::Done { .. } => "done",
            Verdict::Failed { reason: text }
            | Verdict::Skip { reason: text }
            | Verdict::Permanent { error: text }
            | Verdict::Retry { error: text, .. }
            | Verdict::NotYet { reason: text, .. }
            | Verdict::Unknown { error: text, .. } => text,
            Verdict::Lost { .. } => return,
        };
        let attempt = NewAttempt {
            event_id: lease.event_id,
            handler_id: lease.handler_id,
            run: lease.run,
            token: lease.token,
            verdict: "evidence",
            error: format!("{LATE}{text}"),
            age: began.elapsed(),
            correlation_id: lease.correlation_id(),
        };
        let resource = match verdict {
            Verdict::Done { resource } => resource.clone(),
            _ => None,
        };
        let answer = answer(verdict);
        let by = DecidedBy::Handler;
        let response = answer.and_then(|of| handler.response(of, by, resource.as_deref(), told));
        self.evidence = Some(LateAnswer {
            attempt,
            answer,
            told: Told {
                response,
                external_id: told.external_id.clone(),
            },
            resource,
        });
    }

    /// Keeps that an event was applied to its object.
    pub(super) fn applied(&mut self, handler: &ActiveHandler, versioned: &Versioned<'_>) {
        if let Some(by) = &handler.spec.apply_if_newer {
            self.read_from = by.to_string();
            self.applied.push(versioned.applied());
        }
    }

    /// Writes everything; each row must still be ours.
    pub(super) async fn write(
        &mut self,
        handler: &ActiveHandler,
        transaction: &Transaction<'_>,
    ) -> Result<(), StoreError> {
        if let Some(late) = &self.evidence
            && !keep(transaction, late).await?
        {
            self.evidence = None;
        }
        if let Some(unsure) = &self.unsure {
            uncertain::begin(
                transaction,
                &unsure.attempt,
                unsure.losses_alone,
                unsure.first_probe,
                unsure.left_lane.as_deref(),
            )
            .await?;
        }
        latest::apply(transaction, handler.id, &self.applied, &self.read_from).await?;
        delivery::record_attempts(transaction, &self.attempts).await?;
        delivery::finish(transaction, &self.ended, DecidedBy::Handler).await?;
        delivery::hold(transaction, &self.held).await?;
        delivery::postpone(transaction, &self.postponed).await?;
        delivery::retry_later(transaction, &self.back).await
    }

    /// Counts and logs what the committed transaction did.
    pub(super) fn report(&self, wake: &Wake, handler: &ActiveHandler) {
        for ended in &self.ended {
            if ended.response.is_some() {
                wake.operation_ended(ended.event_id);
            }
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
        if let Some(LateAnswer { attempt: late, .. }) = &self.evidence {
            tracing::warn!(
                event.id = %late.event_id, correlation_id = %late.correlation_id, handler = %handler.spec.name, answer = %late.error,
                "kept as evidence"
            );
        }
        if let Some(Unsure { attempt, .. }) = &self.unsure {
            telemetry::attempt_failed(&handler.spec.name);
            uncertain_now(handler, attempt);
        }
        for attempt in &self.attempts {
            if attempt.verdict == "not_yet" {
                tracing::info!(
                    event.id = %attempt.event_id, correlation_id = %attempt.correlation_id, handler = %handler.spec.name, reason = %attempt.error,
                    "not yet"
                );
                continue;
            }
            telemetry::attempt_failed(&handler.spec.name);
            tracing::warn!(
                event.id = %attempt.event_id, correlation_id = %attempt.correlation_id, handler = %handler.spec.name, verdict = attempt.verdict, error = %attempt.error,
                "attempt failed"
            );
        }
    }
}

/// Keeps a late answer; if its delivery is uncertain, it is looked at again at once. The row is
/// locked first, whoever's it is: what makes it uncertain either sees the answer or is seen here.
async fn keep(transaction: &Transaction<'_>, late: &LateAnswer) -> Result<bool, StoreError> {
    let attempt = &late.attempt;
    uncertain::look(transaction, attempt.event_id, attempt.handler_id).await?;
    let kept = uncertain::record_evidence(transaction, late).await?;
    if kept && late.answer.is_some() {
        uncertain::wake(transaction, attempt).await?;
    }
    Ok(kept)
}

/// Counts and logs that a delivery has become uncertain.
pub(super) fn uncertain_now(handler: &ActiveHandler, attempt: &NewAttempt) {
    telemetry::uncertain(&handler.spec.name);
    if first_probe(handler).is_none() {
        tracing::error!(
            event.id = %attempt.event_id, correlation_id = %attempt.correlation_id, handler = %handler.spec.name, verdict = attempt.verdict, error = %attempt.error,
            "uncertain: the result of a call is not known, and a person must decide, see `oncehook resolve`"
        );
        return;
    }
    tracing::warn!(
        event.id = %attempt.event_id, correlation_id = %attempt.correlation_id, handler = %handler.spec.name, verdict = attempt.verdict, error = %attempt.error,
        "uncertain: the result of a call is not known, and it is not sent again"
    );
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
