//! Claimed leases at work: batches of transactional handlers; what calls have in common with them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::domain::Verdict;
use crate::domain::operation::Told;
use crate::store::StoreError;
use crate::store::cap;
use crate::store::delivery::{self, Lease, ReadBack};
use crate::store::flow;
use crate::store::lanes;
use crate::store::locked::Plans;
use crate::store::transaction::{Limits, Transaction, is_connection_error};

use super::handler::transactional as run;
use super::newer::{self, Guarded};
use super::settle::{self, Transitions};
use super::{ActiveHandler, Context, reap};

/// Pause between tries to reach the database while leases are held.
const PAUSE: Duration = Duration::from_millis(100);

/// Settles a claimed group in transactions of up to `batch` deliveries.
///
/// A batch that fails is nobody's attempt: its members run singly, and only what fails alone
/// counts. Leases that were not started when half of their time is over are given back.
pub(super) async fn transactional(
    context: Context,
    handler: Arc<ActiveHandler>,
    leases: Vec<Lease>,
    claimed_at: Instant,
    alone: bool,
) {
    let mut waiting: VecDeque<Lease> = leases.into();
    let mut singly: VecDeque<Lease> = VecDeque::new();
    let mut looked_for_partition = false;
    while !waiting.is_empty() || !singly.is_empty() {
        if context.is_stopping() || claimed_at.elapsed() > handler.spec.lease / 2 {
            waiting.append(&mut singly);
            give_back(&context, waiting.make_contiguous(), handler.spec.lease).await;
            return;
        }
        let batch: Vec<Lease> = match singly.pop_front() {
            Some(single) => vec![single],
            None => waiting
                .drain(..waiting.len().min(usize::from(handler.spec.batch)))
                .collect(),
        };
        let settled = batch_once(&context, &handler, &batch).await;
        // Whichever way it ended: a COMMIT whose answer was lost may have gone through.
        context.store.recheck_lanes(lanes::of(&batch));
        match settled {
            Ok(rest) => {
                context.emitted.notify_one();
                for lease in rest.not_run.into_iter().rev() {
                    waiting.push_front(lease);
                }
                singly.extend(rest.confirm);
            }
            Err(failure) => {
                let looked = &mut looked_for_partition;
                match failed_batch(&context, &handler, batch, failure, alone, looked).await {
                    Next::Singly(members) => singly.extend(members),
                    Next::Settled => {}
                }
            }
        }
    }
}

/// What a committed batch left over.
struct Rest {
    /// Not begun: the budget of handler time was spent.
    not_run: Vec<Lease>,
    /// Failed on a constraint among others; confirmed alone before it counts.
    confirm: Vec<Lease>,
}

/// Why a batch did not commit.
enum Failure {
    /// No connection could be had: nothing was begun.
    NotBegun(StoreError),
    /// Rolled back, or cut at an unknown point.
    Broken(StoreError),
    /// The handler ended the engine's transaction itself.
    EndedTransaction(usize),
    /// A function handler ran into its time-out.
    TimedOut,
}

async fn batch_once(
    context: &Context,
    handler: &ActiveHandler,
    batch: &[Lease],
) -> Result<Rest, Failure> {
    // Before the connection is taken, which is then asked for them too.
    context
        .registry
        .learn_names(&context.store, batch)
        .await
        .map_err(Failure::NotBegun)?;
    let connection = context.store.dispatch().await.map_err(Failure::NotBegun)?;
    let began = Instant::now();
    let (transaction, locked) = settle::begin(&connection, handler, batch, Plans::Handlers)
        .await
        // No handler has run: nothing is lost, whatever went wrong.
        .map_err(Failure::NotBegun)?;
    let mut stale = 0;
    let settled = async {
        let ours: Vec<&Lease> = locked.ours.iter().filter_map(|i| batch.get(*i)).collect();
        let mut transitions = Transitions::default();
        let mut rest = Rest {
            not_run: Vec::new(),
            confirm: Vec::new(),
        };
        let mut running = Vec::with_capacity(ours.len());
        let mut versions = Vec::with_capacity(ours.len());
        let guarded = newer::guard(&transaction, handler, &ours).await?;
        stale = guarded.iter().filter(|g| g.is_stale()).count() as u64;
        for (lease, guarded) in ours.into_iter().zip(guarded) {
            match guarded {
                Guarded::Run(versioned) => {
                    running.push(lease);
                    versions.push(versioned);
                }
                Guarded::Stale(verdict) => {
                    transitions.decide(handler, lease, (&verdict, &Told::default()), began);
                }
                Guarded::Later => rest.not_run.push(lease.clone()),
            }
        }
        let ran = run::run(
            context,
            &transaction,
            handler,
            &running,
            locked.xact.as_deref(),
        )
        .await?;
        for ((lease, versioned), outcome) in running.into_iter().zip(versions).zip(ran) {
            match outcome {
                run::Ran::Verdict(verdict, told) => {
                    if let (Verdict::Done { .. }, Some(versioned)) = (&verdict, &versioned) {
                        transitions.applied(handler, versioned);
                    }
                    transitions.decide(handler, lease, (&verdict, &told), began);
                }
                run::Ran::Confirm => rest.confirm.push(lease.clone()),
                run::Ran::NotRun => rest.not_run.push(lease.clone()),
            }
        }
        // Sent back to back: one round trip.
        let (planned, written) = tokio::join!(
            biased;
            transaction.plan_by_index(),
            transitions.write(handler, &transaction),
        );
        planned?;
        written?;
        cap::give_back(&transaction, batch, stale).await?;
        Ok((transitions, rest))
    }
    .await;
    match settled {
        Ok((transitions, rest)) => {
            transaction.commit().await.map_err(Failure::Broken)?;
            if stale > 0 {
                context.flow.tokens_came_back(handler.id);
            }
            transitions.report(&context.wake, handler);
            Ok(rest)
        }
        Err(run::RunError::Store(error)) => {
            transaction.rollback(&error).await;
            Err(Failure::Broken(error))
        }
        // The connection is left unclean on purpose: it is dropped, which ends whatever the
        // handler is still doing on it.
        Err(run::RunError::EndedTransaction(index)) => Err(Failure::EndedTransaction(
            locked.ours.get(index).copied().unwrap_or(0),
        )),
        Err(run::RunError::TimedOut) => Err(Failure::TimedOut),
    }
}

enum Next {
    Singly(Vec<Lease>),
    Settled,
}

/// A batch that failed: members of a larger one run singly; a single one gets its verdict.
async fn failed_batch(
    context: &Context,
    handler: &ActiveHandler,
    mut batch: Vec<Lease>,
    failure: Failure,
    alone: bool,
    looked_for_partition: &mut bool,
) -> Next {
    let timed_out = || Verdict::Retry {
        after: None,
        error: format!(
            "the handler took longer than its time-out of {:?}",
            handler.spec.timeout
        ),
    };
    match failure {
        Failure::NotBegun(error) => {
            tracing::warn!(error = %error, handler = %handler.spec.name, "batch not begun");
            tokio::time::sleep(PAUSE).await;
            Next::Singly(batch)
        }
        Failure::Broken(error) if is_connection_error(&error) => {
            // Cut in mid-transaction: perhaps committed, perhaps not. The database tells.
            tracing::warn!(error = %error, handler = %handler.spec.name, members = batch.len(), "connection lost while settling");
            let alone = alone && batch.len() == 1;
            resolve_lost(context, handler, &batch, alone).await;
            Next::Settled
        }
        Failure::Broken(error) => {
            // Nobody's failure: it runs again at once. There may be none to make because another
            // node has just made it; when that happens a second time, the row's day has none.
            if let Some(made) = context.store.made_missing_partitions(&error).await
                && (made > 0 || !*looked_for_partition)
            {
                *looked_for_partition |= made == 0;
                return Next::Singly(batch);
            }
            if batch.len() > 1 {
                tracing::warn!(error = %error, handler = %handler.spec.name, members = batch.len(), "batch rolled back; its members run singly");
                return Next::Singly(batch);
            }
            let cancelled = match &error {
                StoreError::BatchCancelled(code) => code == "57014",
                other => other.sqlstate().is_some_and(|code| code.code() == "57014"),
            };
            let verdict = if cancelled {
                timed_out()
            } else {
                Verdict::Retry {
                    after: None,
                    error: error.to_string(),
                }
            };
            record_all(context, handler, &batch, &verdict).await;
            Next::Settled
        }
        Failure::TimedOut => {
            if batch.len() > 1 {
                return Next::Singly(batch);
            }
            record_all(context, handler, &batch, &timed_out()).await;
            Next::Settled
        }
        Failure::EndedTransaction(index) => {
            tracing::error!(handler = %handler.spec.name, "the handler ended the engine's transaction: what it committed cannot be taken back");
            let guilty = batch.remove(index.min(batch.len().saturating_sub(1)));
            let verdict = Verdict::Permanent {
                error: format!(
                    "handler {} ended the engine's transaction (COMMIT or ROLLBACK inside a handler)",
                    handler.spec.name
                ),
            };
            record_all(context, handler, &[guilty], &verdict).await;
            Next::Singly(batch)
        }
    }
}

/// Writes a verdict reached outside the handler's own transaction.
async fn record_all(
    context: &Context,
    handler: &ActiveHandler,
    leases: &[Lease],
    verdict: &Verdict,
) {
    let began = Instant::now();
    while began.elapsed() < handler.spec.lease {
        let written: Result<(), StoreError> = async {
            let connection = context.store.dispatch().await?;
            let (transaction, locked) =
                settle::begin(&connection, handler, leases, Plans::Ours).await?;
            let mut transitions = Transitions::default();
            for lease in locked.ours.iter().filter_map(|i| leases.get(*i)) {
                transitions.decide(handler, lease, (verdict, &Told::default()), began);
            }
            let written = transitions.write(handler, &transaction).await;
            transaction.end(written).await?;
            transitions.report(&context.wake, handler);
            Ok(())
        }
        .await;
        context.store.recheck_lanes(lanes::of(leases));
        match written {
            Ok(()) => return,
            Err(error) => not_written(context, handler, &error).await,
        }
    }
}

/// Another try is made.
pub(super) async fn not_written(context: &Context, handler: &ActiveHandler, error: &StoreError) {
    tracing::warn!(error = %error, handler = %handler.spec.name, "verdict not written yet");
    context.store.made_missing_partitions(error).await;
    tokio::time::sleep(PAUSE).await;
}

/// After a cut: waits for the old transaction to end, then tells what is done and what was lost.
/// A lost lease of a node that lives does not wait for the reaper.
async fn resolve_lost(context: &Context, handler: &ActiveHandler, leases: &[Lease], alone: bool) {
    let began = Instant::now();
    for lease in leases {
        while began.elapsed() < handler.spec.lease {
            match resolve_one(context, lease, alone, began).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(error = %error, "outcome of a cut transaction not known yet");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    } // The old transaction is over, whichever way.
    context.store.recheck_lanes(lanes::of(leases));
}

async fn resolve_one(
    context: &Context,
    lease: &Lease,
    alone: bool,
    began: Instant,
) -> Result<(), StoreError> {
    let connection = context.store.dispatch().await?;
    let transaction = Transaction::begin(
        &connection,
        Limits {
            lock: Duration::from_secs(5),
            ..Limits::SHORT
        },
    )
    .await?;
    let active = context.registry.current();
    let resolved = async {
        if delivery::read_back(&transaction, lease).await? == ReadBack::StillOurs {
            let became = reap::lost(&transaction, &active, lease, alone, began.elapsed()).await?;
            return Ok(Some(became));
        }
        Ok(None)
    }
    .await;
    let became = transaction.end(resolved).await?;
    if let (Some(handler), Some(became)) = (active.handlers.get(&lease.handler_id), became) {
        became.report(handler, lease);
    }
    Ok(())
}

/// How leases that were not started go back.
#[derive(Clone, Copy)]
pub(super) enum Back<'a> {
    /// Due at once.
    Ready,
    /// Aside, since their sources are paused.
    Aside,
    /// Due after these times.
    Later(&'a [Duration]),
}

/// Gives unstarted leases back, due at once.
pub(super) async fn give_back(context: &Context, leases: &[Lease], lease: Duration) {
    put_back(context, leases, Back::Ready, lease).await;
}

/// Gives unstarted leases back, trying until they would have run out.
pub(super) async fn put_back(context: &Context, leases: &[Lease], back: Back<'_>, lease: Duration) {
    let began = Instant::now();
    while !leases.is_empty() && began.elapsed() < lease {
        let given = async {
            let connection = context.store.dispatch().await?;
            match back {
                Back::Ready => delivery::give_back(&connection, leases).await,
                Back::Aside => flow::set_aside(&connection, leases).await,
                Back::Later(delays) => delivery::defer(&connection, leases, delays).await,
            }
        }
        .await;
        match given {
            Ok(_) => {
                let limited = leases.iter().find(|lease| lease.rate_token.is_some());
                if let Some(lease) = limited {
                    context.flow.tokens_came_back(lease.handler_id);
                }
                return;
            }
            Err(error) => {
                tracing::debug!(error = %error, leases = leases.len(), "leases not given back yet");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
