//! Uncertain deliveries: late answers are read, receivers are asked, and what is known decides.
//!
//! Asking is an outside call: no transaction is open meanwhile. Two nodes may ask at once, which is
//! harmless; the decision is made under the row's lock. "Absent" and "refused" count only from the last
//! who asked, "absent" only if the call could no longer be under way when the question left.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{self, JoinSet};

use crate::domain::operation::Told;
use crate::domain::{
    self, DecidedBy, Ending, OnUnknown, Policy, Probed, Progress, Standing, Step, uncertain::probed,
};
use crate::store::delivery::{self, NewAttempt};
use crate::store::transaction::{Limits, Transaction};
use crate::store::uncertain::{self, Decided, Doubt, Evidence, Live, Next, Room};
use crate::store::{StoreError, handling, lanes, locked};
use crate::telemetry;

use super::handler::external::{self, NotSettled};
use super::handler::{Answer, Delivered, function::delivered};
use super::newer;
use super::settle::{self, LATE};
use super::{ActiveHandler, Context, Outside};

const INTERVAL: Duration = Duration::from_secs(1);
/// Questions under way per node, divided among its handlers: a receiver that is slow to say what it
/// knows keeps nobody from asking another.
const AT_ONCE: usize = 16;

/// Questions under way, each of a handler.
#[derive(Default)]
struct Asking {
    tasks: JoinSet<()>,
    of: HashMap<task::Id, i32>,
}

impl Asking {
    fn begin(&mut self, handler: i32, question: impl Future<Output = ()> + Send + 'static) {
        let begun = self.tasks.spawn(question);
        self.of.insert(begun.id(), handler);
    }

    /// Forgets those that have ended.
    fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            self.of.remove(&id);
        }
    }

    /// How many more there may be of one of so many handlers: at least one at a time each.
    fn free(&self, handler: i32, handlers: usize) -> usize {
        let share = (AT_ONCE / handlers.max(1)).max(1);
        let asked = self.of.values().filter(|of| **of == handler).count();
        share.saturating_sub(asked)
    }
}

pub(super) async fn run(mut context: Context) {
    let mut asking = Asking::default();
    while !context.is_stopping() {
        asking.reap();
        match take(&context, &asking).await {
            Ok(taken) => {
                for (handler, doubt) in taken {
                    asking.begin(handler.id, one(context.clone(), handler, doubt));
                }
            }
            Err(error) => tracing::warn!(error = %error, "uncertain deliveries not looked at"),
        }
        let pause = INTERVAL.mul_f64(0.5 + rand::random::<f64>());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = context.stopping.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// Takes what is due, as far as there is room beside what is asked already. Of every handler: one that repeats its
/// calls, or makes none, may have made others before its configuration was changed, whose late answers are read and
/// the rest of which is for people.
async fn take(
    context: &Context,
    asking: &Asking,
) -> Result<Vec<(Arc<ActiveHandler>, Doubt)>, StoreError> {
    let active = context.registry.current();
    let asks = |handler: &&Arc<ActiveHandler>| handler.on_unknown() != OnUnknown::Retry;
    let askers = active.handlers.values().filter(asks).count();
    let room: Vec<Room> = active
        .handlers
        .values()
        .map(|handler| Room {
            handler_id: handler.id,
            others_after: handler.spec.lease,
            limit: asking.free(handler.id, askers),
        })
        .filter(|room| room.limit > 0)
        .collect();
    if room.is_empty() {
        return Ok(Vec::new());
    }
    let doubts = {
        let connection = context.store.admin().await?;
        context.store.prove_names(&connection).await?;
        uncertain::claim(&connection, &room).await?
    };
    let leases: Vec<_> = doubts.iter().map(|doubt| doubt.lease.clone()).collect();
    context
        .registry
        .learn_names(&context.store, &leases)
        .await?;
    Ok(doubts
        .into_iter()
        .filter_map(|doubt| {
            let handler = active.handlers.get(&doubt.lease.handler_id)?;
            Some((Arc::clone(handler), doubt))
        })
        .collect())
}

/// Asks about one delivery and writes what is known. What goes wrong with the database is asked
/// again when its time has come.
async fn one(context: Context, handler: Arc<ActiveHandler>, doubt: Doubt) {
    let asked = async {
        let event = event(&context, &handler, &doubt).await?;
        let mut known = match &event {
            _ if is_answered(&context, &doubt).await? => Known::Nothing,
            Some(event) => ask(&handler, event).await,
            None => {
                let why = "the event's payload or source is not there".to_owned();
                Known::Asked(Probed::Unknown { why }, Told::default())
            }
        };
        loop {
            match decide(&context, &handler, &doubt, event.as_ref(), &known).await {
                Ok(()) => return Ok(()),
                Err(NotSettled::Store(error)) => return Err(error),
                Err(NotSettled::Undone(why) | NotSettled::Broken(why)) => {
                    known = Known::Unsettled(Probed::Unknown { why });
                }
            }
        }
    }
    .await;
    if let Err(error) = asked {
        tracing::warn!(error = %error, event.id = %doubt.lease.event_id, handler = %handler.spec.name, "nothing decided about an uncertain delivery");
        context.store.made_missing_partitions(&error).await;
    }
}

/// What is known of a call beside late answers.
enum Known {
    /// Nobody was asked.
    Nothing,
    /// What the receiver said, also to the client of an operation.
    Asked(Probed, Told),
    /// How it ended is known, and what the handler writes then failed: until that is mended, nothing
    /// that is known counts.
    Unsettled(Probed),
}

impl Known {
    fn found(&self) -> Option<&Probed> {
        match self {
            Self::Nothing => None,
            Self::Asked(found, _) | Self::Unsettled(found) => Some(found),
        }
    }
}

/// The event as its handler sees it.
async fn event(
    context: &Context,
    handler: &ActiveHandler,
    doubt: &Doubt,
) -> Result<Option<Delivered>, StoreError> {
    let lease = &doubt.lease;
    let connection = context.store.dispatch().await?;
    let mut payloads = handling::payloads(&connection, &[lease.event_id])
        .await?
        .payloads;
    let payload = payloads.remove(&lease.event_id);
    Ok(match (&lease.event, payload) {
        (Some(event), Some(payload)) => {
            let delivered = delivered(context, handler, lease, event, payload);
            delivered.map(|event| Delivered {
                // The call in question is counted already.
                attempt: event.attempt - 1,
                ..event
            })
        }
        _ => None,
    })
}

/// Whether a late answer is there, so that nobody need be asked.
async fn is_answered(context: &Context, doubt: &Doubt) -> Result<bool, StoreError> {
    let connection = context.store.admin().await?;
    let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
    let read = async {
        Ok(match live(&transaction, doubt).await? {
            Some(live) => evidence(&transaction, doubt, &live).await?.is_some(),
            None => false,
        })
    }
    .await;
    transaction.end(read).await
}

/// The delivery, locked, if it is still the uncertain one.
async fn live(transaction: &Transaction<'_>, doubt: &Doubt) -> Result<Option<Live>, StoreError> {
    let lease = &doubt.lease;
    let found = uncertain::look(transaction, lease.event_id, lease.handler_id).await?;
    Ok(found.filter(|live| live.is_uncertain() && live.run == lease.run))
}

async fn evidence(
    transaction: &Transaction<'_>,
    doubt: &Doubt,
    live: &Live,
) -> Result<Option<Evidence>, StoreError> {
    let Some(call) = live.call_token else {
        return Ok(None);
    };
    let lease = &doubt.lease;
    uncertain::evidence(
        transaction,
        lease.event_id,
        lease.handler_id,
        lease.run,
        Some(call),
    )
    .await
}

async fn ask(handler: &ActiveHandler, event: &Delivered) -> Known {
    match (&handler.outside, handler.on_unknown()) {
        (Some(outside), OnUnknown::Probe) => {
            let (found, told) = external::probe(handler, outside, event).await;
            telemetry::probed(&handler.spec.name, found.as_str());
            Known::Asked(found, told)
        }
        _ => Known::Nothing,
    }
}

/// One transaction: the row is locked, a late answer goes first, then what the probe said.
async fn decide(
    context: &Context,
    handler: &ActiveHandler,
    doubt: &Doubt,
    event: Option<&Delivered>,
    known: &Known,
) -> Result<(), NotSettled> {
    let connection = context.store.dispatch().await?;
    let transaction = Transaction::begin(&connection, settle::limits(handler))
        .await?
        .for_handlers();
    let written = decide_in(&transaction, handler, doubt, event, known).await;
    match written {
        Ok(decided) => {
            let committed = transaction.commit().await;
            // Whichever way it ended: a COMMIT whose answer was lost may have gone through.
            context.store.recheck_lanes(lanes::of([&doubt.lease]));
            committed?;
            context.emitted.notify_one();
            report(handler, doubt, known.found(), decided.as_ref());
            if handler.spec.operation.is_some() && decided.is_some() {
                context.wake.operation_ended(doubt.lease.event_id);
            }
            Ok(())
        }
        Err(NotSettled::Store(error)) => {
            transaction.rollback(&error).await;
            Err(NotSettled::Store(error))
        }
        // Left unclean on purpose: the connection is dropped.
        Err(failure) => Err(failure),
    }
}

/// What was written beside the history; `None` when somebody else had decided, or has asked since.
async fn decide_in(
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    doubt: &Doubt,
    event: Option<&Delivered>,
    known: &Known,
) -> Result<Option<(Step, DecidedBy)>, NotSettled> {
    let Some(live) = live(transaction, doubt).await? else {
        return Ok(None);
    };
    if let Some(found) = known.found() {
        delivery::record_attempts(transaction, &[question(doubt, found)]).await?;
    }
    let answered = match known {
        Known::Unsettled(_) => None,
        Known::Nothing | Known::Asked(..) => evidence(transaction, doubt, &live).await?,
    };
    let progress = doubt.lease.progress;
    let of_evidence = |kept| of_evidence(kept, progress, &handler.spec.policy);
    let told = match known {
        Known::Asked(_, told) => told.clone(),
        Known::Nothing | Known::Unsettled(_) => Told::default(),
    };
    let who = who(answered.as_ref());
    let (step, by, told) = match (answered.and_then(of_evidence), known.found()) {
        (Some((step, told)), _) => (step, who, told),
        // Another has asked since, and may have had it sent again: a "no" is of an earlier call then.
        (None, Some(Probed::Absent | Probed::Refused { .. }))
            if live.probe_token != Some(doubt.lease.token) =>
        {
            return Ok(None);
        }
        (None, Some(found)) => {
            let standing = Standing {
                progress,
                probes: doubt.probes,
                landed: doubt.landed,
            };
            let step = probed(standing, found, &handler.spec.policy, &handler.spec.probes);
            (step, DecidedBy::Probe, told)
        }
        (None, None) => (Step::Person, DecidedBy::Probe, told),
    };
    let id = (
        doubt.lease.event_id,
        doubt.lease.handler_id,
        doubt.lease.run,
    );
    let gap = handler.spec.probes.first();
    let written = match &step {
        Step::Finish {
            ending,
            reason,
            resource,
        } => {
            let settled = settle_outside(transaction, handler, event, &step).await?;
            let told = settled.or(told);
            if let (Ending::Succeeded, Some(event)) = (ending, event) {
                newer::keep_applied(transaction, handler, &doubt.lease, &event.body).await?;
            }
            let row = (doubt.lease.event_id, doubt.lease.handler_id, &live);
            let response = handler.response(*ending, by, resource.as_deref(), &told);
            let decided = Decided {
                ending: *ending,
                by,
                reason: reason.as_deref(),
                resource: resource.as_deref(),
                external_id: told.external_id.as_deref(),
                response: response.as_ref(),
            };
            uncertain::finish(transaction, row, &decided).await?;
            true
        }
        Step::Hold { reason } => {
            uncertain::hold(transaction, id, reason).await?;
            true
        }
        Step::Release => uncertain::release(transaction, id, Some(doubt.lease.token)).await?,
        Step::ProbeAt(at) => uncertain::wait(transaction, &doubt.lease, Next::At(*at), gap).await?,
        Step::ProbeWhenLanded => {
            uncertain::wait(transaction, &doubt.lease, Next::Landed, gap).await?
        }
        Step::Person => uncertain::wait(transaction, &doubt.lease, Next::Never, gap).await?,
    };
    Ok(written.then_some((step, by)))
}

/// What an `external` handler writes when its call has ended.
async fn settle_outside(
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    event: Option<&Delivered>,
    step: &Step,
) -> Result<Told, NotSettled> {
    let (Some(Outside::Code(code)), Some(event), Some(answer)) =
        (&handler.outside, event, answer_of(step))
    else {
        return Ok(Told::default());
    };
    let xact = locked::current_xact(transaction).await?;
    transaction.plan_as_configured().await?;
    let told = external::settle(transaction, handler, code, event, answer, &xact).await?;
    transaction.plan_by_index().await?;
    Ok(told)
}

fn answer_of(step: &Step) -> Option<Answer> {
    let Step::Finish {
        ending,
        reason,
        resource,
    } = step
    else {
        return None;
    };
    let reason = reason.clone().unwrap_or_default();
    match ending {
        Ending::Succeeded => Some(resource.clone().map_or(Answer::Done, Answer::DoneWith)),
        Ending::Failed => Some(Answer::Failed(reason)),
        Ending::Skipped => Some(Answer::Skip(reason)),
        Ending::Dead | Ending::Cancelled => None,
    }
}

/// Who decides by what is kept.
fn who(kept: Option<&Evidence>) -> DecidedBy {
    match kept {
        Some(Evidence { by_event: true, .. }) => DecidedBy::Webhook,
        _ => DecidedBy::Handler,
    }
}

fn of_evidence(evidence: Evidence, progress: Progress, policy: &Policy) -> Option<(Step, Told)> {
    let text = evidence.text.strip_prefix(LATE).unwrap_or(&evidence.text);
    let (ending, reason) = match evidence.answer.as_str() {
        "succeeded" => (
            Ending::Succeeded,
            evidence.by_event.then(|| text.to_owned()),
        ),
        "failed" => (Ending::Failed, Some(text.to_owned())),
        "skipped" => (Ending::Skipped, Some(text.to_owned())),
        "dead" => {
            let reason = format!("permanent error: {text}");
            let step = domain::uncertain::dead(progress, policy, reason);
            return Some((step, Told::default()));
        }
        _ => return None,
    };
    let step = Step::Finish {
        ending,
        reason,
        resource: evidence.resource,
    };
    Some((step, evidence.told))
}

/// The history's line about a question.
fn question(doubt: &Doubt, found: &Probed) -> NewAttempt {
    let lease = &doubt.lease;
    let said = match found {
        Probed::Applied { .. } => "applied".to_owned(),
        Probed::Refused { reason } => format!("refused: {reason}"),
        Probed::Absent if doubt.landed => "absent".to_owned(),
        Probed::Absent => "absent, but the call may still be under way".to_owned(),
        Probed::Unknown { why } => format!("cannot tell: {why}"),
        // Taken apart where it was asked.
        Probed::Telling(found, _) => found.as_str().to_owned(),
    };
    NewAttempt {
        event_id: lease.event_id,
        handler_id: lease.handler_id,
        run: lease.run,
        token: lease.token,
        verdict: "probe",
        error: said,
        age: Duration::ZERO,
        correlation_id: lease.correlation_id(),
    }
}

/// Counts and logs what was committed.
fn report(
    handler: &ActiveHandler,
    doubt: &Doubt,
    found: Option<&Probed>,
    decided: Option<&(Step, DecidedBy)>,
) {
    let (event_id, name) = (doubt.lease.event_id, &handler.spec.name);
    let correlation_id = doubt.lease.correlation_id();
    let said = found.map_or("nobody is asked", Probed::as_str);
    match decided {
        Some((Step::Finish { ending, .. }, by)) => {
            telemetry::finished(name, *ending);
            tracing::info!(event.id = %event_id, %correlation_id, handler = %name, result = ending.as_str(), by = by.as_str(), "an uncertain delivery has ended");
        }
        Some((Step::Hold { reason }, _)) => {
            telemetry::held(name);
            tracing::error!(event.id = %event_id, %correlation_id, handler = %name, reason, "held: its lane waits for a person");
        }
        Some((Step::Release, _)) => {
            tracing::info!(event.id = %event_id, %correlation_id, handler = %name, "the call was not applied: it is sent again under the same effect key");
        }
        Some((Step::Person, _)) => {
            tracing::error!(event.id = %event_id, %correlation_id, handler = %name, probes = doubt.probes, said, "uncertain: a person must decide, see `oncehook resolve`");
        }
        Some((Step::ProbeAt(_) | Step::ProbeWhenLanded, _)) => {
            tracing::info!(event.id = %event_id, %correlation_id, handler = %name, probes = doubt.probes, said, "still uncertain");
        }
        None => {
            tracing::debug!(event.id = %event_id, handler = %name, "decided by somebody else meanwhile");
        }
    }
}
