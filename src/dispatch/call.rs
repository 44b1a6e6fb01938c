//! Single calls of `http` and `external` handlers: each goes out and is settled by itself.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::domain::operation::Told;
use crate::domain::{EffectKey, Ending, Verdict};
use crate::store::delivery::Lease;
use crate::store::effects;
use crate::store::handling::{self, Part, Payload};
use crate::store::lanes;
use crate::store::locked::Plans;
use crate::store::transaction::is_connection_error;
use crate::store::{StoreError, cap};

use super::flow::{Begun, Tries};
use super::handler::{
    Delivered,
    external::{self, NotSettled, Sent},
    function::delivered,
};
use super::newer::{self, Guarded, Versioned};
use super::running::Running;
use super::settle::{self, Transitions};
use super::work::{Back, give_back, not_written, put_back};
use super::{ActiveHandler, Context, Outside};

/// A call that was not started this long after its claim was sent is given back. With the time-out it
/// stays below the shortest lease of a call, which is the time-out and five seconds.
const START_WITHIN: Duration = Duration::from_secs(3);

/// Pause between tries to write an answer while the database is away.
const AWAY: Duration = Duration::from_millis(500);

/// A lease of a handler that makes calls, with what is sent.
struct Call {
    lease: Lease,
    payload: Option<Payload>,
    /// An event has said that its effect is there.
    done: bool,
    begun: Begun,
    claimed_at: Instant,
}

/// Begins claimed calls as their payloads are read, a part at a time. Those about an object that has another here, and
/// repetitions beyond their budget, are put off: how many, is returned. What cannot be started in time is given back.
pub(super) async fn start(
    context: &Context,
    handler: &Arc<ActiveHandler>,
    leases: Vec<Lease>,
    claimed_at: Instant,
    alone: bool,
    running: &mut Running,
) -> usize {
    let (leases, others) = newer::one_per_object(handler, leases);
    let waits: Vec<Duration> = others.iter().map(newer::behind_another).collect();
    put_back(context, &others, Back::Later(&waits), handler.spec.lease).await;
    let Tries { begun, deferred } = context.flow.begin(handler, leases, alone);
    let (later, delays): (Vec<Lease>, Vec<Duration>) = deferred.into_iter().unzip();
    put_back(context, &later, Back::Later(&delays), handler.spec.lease).await;
    let put_off = others.len() + later.len();
    let mut waiting: VecDeque<(Lease, Begun)> = begun.into();
    let mut done = None;
    while !waiting.is_empty() {
        let leases: Vec<Lease> = waiting.iter().map(|(lease, _)| lease.clone()).collect();
        let part = match part(context, handler, &leases, &mut done).await {
            Ok(part) if claimed_at.elapsed() <= START_WITHIN => Some(part),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(error = %error, handler = %handler.spec.name, "payloads not loaded; leases are given back");
                None
            }
        };
        let Some(mut part) = part else {
            give_back(context, &leases, handler.spec.lease).await;
            break;
        };
        for (lease, begun) in waiting.drain(..part.read.min(leases.len())) {
            let payload = part.payloads.remove(&lease.event_id);
            let call = Call {
                done: done
                    .as_ref()
                    .is_some_and(|done| done.contains(&lease.event_id)),
                lease,
                payload,
                begun,
                claimed_at,
            };
            running.spawn(handler.id, run(context.clone(), Arc::clone(handler), call));
        }
    }
    put_off
}

/// The next part of what these leases are about. Their effect keys are kept with the first one, before any call
/// leaves; `done`: whose effect an event has said to be there.
async fn part(
    context: &Context,
    handler: &ActiveHandler,
    leases: &[Lease],
    done: &mut Option<HashSet<Uuid>>,
) -> Result<Part, StoreError> {
    let registry = &context.registry;
    registry.learn_names(&context.store, leases).await?;
    let events: Vec<Uuid> = leases.iter().map(|l| l.event_id).collect();
    let connection = context.store.dispatch().await?;
    if handler.settled && done.is_none() {
        let key_of = |lease| {
            let (_, key) = registry.identify(lease, lease.event.as_ref()?, handler)?;
            Some((key, lease))
        };
        let calls: Vec<(EffectKey, &Lease)> = leases.iter().filter_map(key_of).collect();
        *done = Some(effects::keep(&connection, &calls).await?);
    }
    handling::payloads(&connection, &events).await
}

/// Makes one call and settles it. No transaction is open while it is on its way.
async fn run(context: Context, handler: Arc<ActiveHandler>, call: Call) {
    let Call {
        lease,
        payload,
        done,
        begun,
        claimed_at,
    } = call;
    let Some(outside) = &handler.outside else {
        return;
    };
    // A process that was stopped since the claim must not send when another may have.
    if claimed_at.elapsed() > START_WITHIN {
        return give_back(&context, &[lease], handler.spec.lease).await;
    }
    let began = Instant::now();
    if done {
        // It ends by that word, as any call whose result is not known and that was answered late.
        let error = "not sent: an event says that its effect is there".to_owned();
        let verdict = Verdict::Unknown { after: None, error };
        let ended = Ended::without_a_call(&lease);
        let answer = (verdict, Told::default());
        return settle_call(&context, &handler, ended, answer, began).await;
    }
    let event = match (&lease.event, payload) {
        (Some(event), Some(payload)) => delivered(&context, &handler, &lease, event, payload)
            .ok_or_else(Verdict::source_unknown),
        _ => Err(Verdict::payload_expired()),
    };
    let event = match event {
        Ok(event) => event,
        Err(verdict) => {
            let ended = Ended::without_a_call(&lease);
            let answer = (verdict, Told::default());
            return settle_call(&context, &handler, ended, answer, began).await;
        }
    };
    let mut ended = Ended {
        lease: &lease,
        event: Some(&event),
        versioned: None,
    };
    match newer::guard_call(&context, &handler, &lease, &event.body).await {
        Ok(Guarded::Run(found)) => ended.versioned = found,
        Ok(Guarded::Stale(verdict)) => {
            let ended = Ended::without_a_call(&lease);
            let answer = (verdict, Told::default());
            return settle_call(&context, &handler, ended, answer, began).await;
        }
        Ok(Guarded::Later) => {
            begun.put_off();
            let wait = [newer::behind_another(&lease)];
            return put_back(&context, &[lease], Back::Later(&wait), handler.spec.lease).await;
        }
        Err(error) => {
            tracing::warn!(error = %error, handler = %handler.spec.name, "not compared with what was applied; the lease is given back");
            return give_back(&context, &[lease], handler.spec.lease).await;
        }
    }
    // The comparison may have waited for the database.
    if claimed_at.elapsed() > START_WITHIN {
        return give_back(&context, &[lease], handler.spec.lease).await;
    }
    let Sent {
        verdict,
        works,
        told,
    } = external::call(&handler, outside, &event).await;
    // At once: the claims that come next must not wait for the settle.
    if let Some(works) = works {
        begun.ended(works);
    }
    settle_call(&context, &handler, ended, (verdict, told), began).await;
}

/// A call that has ended, or that was not made.
struct Ended<'c> {
    lease: &'c Lease,
    /// `None` where no call was made.
    event: Option<&'c Delivered>,
    versioned: Option<Versioned<'c>>,
}

impl<'c> Ended<'c> {
    fn without_a_call(lease: &'c Lease) -> Self {
        Self {
            lease,
            event: None,
            versioned: None,
        }
    }
}

/// The answer of a call, until it is written. Given up, by the end of the process at the latest, it is an error:
/// nobody else knows it.
struct Unwritten<'c> {
    handler: &'c ActiveHandler,
    lease: &'c Lease,
    /// The result that it stands for; `None` where nothing would be lost.
    answer: Option<&'static str>,
}

impl<'c> Unwritten<'c> {
    fn of(handler: &'c ActiveHandler, ended: &Ended<'c>, verdict: &Verdict) -> Self {
        let known = match (&handler.outside, ended.event) {
            // Its ledger keeps it, and gives it to the next try.
            (Some(Outside::Sql(_)), _) | (_, None) => None,
            _ => settle::answer(verdict),
        };
        Self {
            handler,
            lease: ended.lease,
            answer: known.map(Ending::as_str),
        }
    }
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer {
            tracing::error!(
                event.id = %self.lease.event_id, correlation_id = %self.lease.correlation_id(), handler = %self.handler.spec.name,
                run = self.lease.run, answer,
                "the answer of a call is known, and the database did not take it: it is given up"
            );
        }
    }
}

/// Writes a call's verdict; when the lease was lost meanwhile, the answer is kept as evidence. As long as the
/// database is away, an answer that is known is kept here, in its slot: calls of the handler that have no answer
/// written are never more than it may have under way.
async fn settle_call(
    context: &Context,
    handler: &ActiveHandler,
    ended: Ended<'_>,
    (mut verdict, mut told): (Verdict, Told),
    began: Instant,
) {
    let end = began + handler.spec.lease + handler.spec.timeout;
    let mut unwritten = Unwritten::of(handler, &ended, &verdict);
    loop {
        let settled = settle_once(context, handler, &ended, (&verdict, &told), began).await;
        // Whichever way it ended: a COMMIT whose answer was lost may have gone through.
        context.store.recheck_lanes(lanes::of([ended.lease]));
        let is_late = Instant::now() >= end;
        match settled {
            Ok(()) => {
                unwritten.answer = None;
                return;
            }
            Err(NotSettled::Store(error)) if !is_late => {
                not_written(context, handler, &error).await;
            }
            Err(NotSettled::Store(error)) if unwritten.answer.is_some() && is_away(&error) => {
                tracing::debug!(error = %error, event.id = %ended.lease.event_id, "an answer is not written yet");
                tokio::time::sleep(AWAY).await;
            }
            Err(NotSettled::Undone(error) | NotSettled::Broken(error)) if !is_late => {
                verdict = Verdict::Unknown { after: None, error };
                told = Told::default();
                unwritten.answer = None;
            }
            Err(_) => return,
        }
    }
}

/// Whether the error is of the database as a whole, and none of what was to be written.
fn is_away(error: &StoreError) -> bool {
    is_connection_error(error) || matches!(error.sqlstate_class(), Some("53" | "57" | "58"))
}

async fn settle_once(
    context: &Context,
    handler: &ActiveHandler,
    ended: &Ended<'_>,
    (verdict, told): (&Verdict, &Told),
    began: Instant,
) -> Result<(), NotSettled> {
    let lease = ended.lease;
    // Only an `external` handler writes something of its own.
    let settles = match (&handler.outside, ended.event) {
        (Some(Outside::Code(code)), Some(event)) => {
            external::answer_of(verdict).map(|answer| (code, event, answer))
        }
        _ => None,
    };
    let plans = match settles {
        Some(_) => Plans::Handlers,
        None => Plans::Ours,
    };
    let leases = std::slice::from_ref(lease);
    let connection = context.store.dispatch().await?;
    let (transaction, locked) = settle::begin(&connection, handler, leases, plans).await?;
    let mut transitions = Transitions::default();
    let written = async {
        if !locked.ours.is_empty() {
            let mut told = told.clone();
            if let Some((code, event, answer)) = settles {
                let xact = locked.xact.as_deref().unwrap_or_default();
                let settled =
                    external::settle(&transaction, handler, code, event, answer, xact).await?;
                told = settled.or(told);
                transaction.plan_by_index().await?;
            }
            if let (Verdict::Done { .. }, Some(versioned)) = (verdict, &ended.versioned) {
                transitions.applied(handler, versioned);
            }
            transitions.decide(handler, lease, (verdict, &told), began);
        } else if locked.finished.is_empty() {
            transitions.evidence(handler, lease, (verdict, told), began);
        }
        transitions.write(handler, &transaction).await?;
        if !locked.ours.is_empty() && ended.event.is_none() {
            cap::give_back(&transaction, leases, 1).await?;
        }
        Ok(())
    }
    .await;
    match written {
        Ok(()) => {
            transaction.commit().await?;
            if ended.event.is_none() {
                context.flow.tokens_came_back(handler.id);
            }
        }
        Err(NotSettled::Store(error)) => {
            transaction.rollback(&error).await;
            return Err(NotSettled::Store(error));
        }
        // Left unclean on purpose: the connection is dropped.
        Err(failure) => return Err(failure),
    }
    transitions.report(&context.wake, handler);
    context.emitted.notify_one();
    Ok(())
}
