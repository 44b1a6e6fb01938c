//! Claimed leases at work: batches of transactional handlers, single calls of the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::domain::Verdict;
use crate::store::StoreError;
use crate::store::delivery::{self, Lease, ReadBack};
use crate::store::handling::{self, Payload};
use crate::store::locked::Plans;
use crate::store::transaction::{Limits, Transaction, is_connection_error};

use super::handler::{
    Delivered, HandlerKind,
    external::{self, NotSettled},
    function::delivered,
    transactional as run,
};
use super::settle::{self, Transitions};
use super::{ActiveHandler, Context, reap};

/// A call that was not started this long after its claim is given back.
const START_WITHIN: Duration = Duration::from_secs(1);

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
        match batch_once(&context, &handler, &batch).await {
            Ok(rest) => {
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
    let connection = context.store.dispatch().await.map_err(Failure::NotBegun)?;
    context
        .registry
        .learn_names(&context.store, batch)
        .await
        .map_err(Failure::NotBegun)?;
    let began = Instant::now();
    let (transaction, locked) = settle::begin(&connection, handler, batch, Plans::Handlers)
        .await
        // No handler has run: nothing is lost, whatever went wrong.
        .map_err(Failure::NotBegun)?;
    let settled = async {
        let ours: Vec<&Lease> = locked.ours.iter().filter_map(|i| batch.get(*i)).collect();
        let ran = run::run(
            context,
            &transaction,
            handler,
            &ours,
            locked.xact.as_deref(),
        )
        .await?;
        let mut transitions = Transitions::default();
        let mut rest = Rest {
            not_run: Vec::new(),
            confirm: Vec::new(),
        };
        for (lease, outcome) in ours.into_iter().zip(ran) {
            match outcome {
                run::Ran::Verdict(verdict) => transitions.decide(handler, lease, &verdict, began),
                run::Ran::Confirm => rest.confirm.push(lease.clone()),
                run::Ran::NotRun => rest.not_run.push(lease.clone()),
            }
        }
        // Sent back to back: one round trip.
        let (planned, written) = tokio::join!(
            biased;
            transaction.plan_by_index(),
            transitions.write(&transaction),
        );
        planned?;
        written?;
        Ok((transitions, rest))
    }
    .await;
    match settled {
        Ok((transitions, rest)) => {
            transaction.commit().await.map_err(Failure::Broken)?;
            transitions.report(handler);
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
        // Nobody's failure: it runs again at once. There may be none to make because another node
        // has just made it; when that happens a second time, the row's day has none.
        Failure::Broken(error)
            if let Some(made) = context.store.made_missing_partitions(&error).await
                && (made > 0 || !*looked_for_partition) =>
        {
            *looked_for_partition |= made == 0;
            Next::Singly(batch)
        }
        Failure::Broken(error) => {
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
        let written = async {
            let connection = context.store.dispatch().await?;
            let (transaction, locked) =
                settle::begin(&connection, handler, leases, Plans::Ours).await?;
            let mut transitions = Transitions::default();
            for lease in locked.ours.iter().filter_map(|i| leases.get(*i)) {
                transitions.decide(handler, lease, verdict, began);
            }
            let written = transitions.write(&transaction).await;
            transaction.end(written).await?;
            transitions.report(handler);
            Ok(())
        }
        .await;
        match written {
            Ok(()) => return,
            Err(error) => not_written(context, handler, &error).await,
        }
    }
}

/// Another try is made.
async fn not_written(context: &Context, handler: &ActiveHandler, error: &StoreError) {
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
    }
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
    let resolved = async {
        if delivery::read_back(&transaction, lease).await? == ReadBack::StillOurs {
            reap::lost(
                &transaction,
                &context.registry.current(),
                lease,
                alone,
                began.elapsed(),
            )
            .await?;
        }
        Ok(())
    }
    .await;
    transaction.end(resolved).await
}

/// Gives unstarted leases back, trying until they would have run out.
async fn give_back(context: &Context, leases: &[Lease], lease: Duration) {
    let began = Instant::now();
    while began.elapsed() < lease {
        let given = async {
            let connection = context.store.dispatch().await?;
            delivery::give_back(&connection, leases).await
        }
        .await;
        match given {
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(error = %error, leases = leases.len(), "leases not given back yet");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// A lease of a handler that makes calls, with what is sent.
pub(super) struct Call {
    lease: Lease,
    payload: Option<Payload>,
    claimed_at: Instant,
}

/// Loads the payloads of claimed calls in one query. What cannot be started in time is given
/// back.
pub(super) async fn prepare_calls(
    context: &Context,
    handler: &ActiveHandler,
    leases: Vec<Lease>,
    claimed_at: Instant,
) -> Vec<Call> {
    let loaded = async {
        context
            .registry
            .learn_names(&context.store, &leases)
            .await?;
        let events: Vec<uuid::Uuid> = leases.iter().map(|l| l.event_id).collect();
        let connection = context.store.dispatch().await?;
        handling::payloads(&connection, &events).await
    }
    .await;
    match loaded {
        Ok(mut payloads) if claimed_at.elapsed() <= START_WITHIN => leases
            .into_iter()
            .map(|lease| {
                let payload = payloads.remove(&lease.event_id);
                Call {
                    lease,
                    payload,
                    claimed_at,
                }
            })
            .collect(),
        Ok(_) => {
            give_back(context, &leases, handler.spec.lease).await;
            Vec::new()
        }
        Err(error) => {
            tracing::warn!(error = %error, handler = %handler.spec.name, "payloads not loaded; leases are given back");
            give_back(context, &leases, handler.spec.lease).await;
            Vec::new()
        }
    }
}

/// Makes one call and settles it. No transaction is open while it is on its way.
pub(super) async fn call(context: Context, handler: Arc<ActiveHandler>, call: Call) {
    let Call {
        lease,
        payload,
        claimed_at,
    } = call;
    let Some(outside) = &handler.outside else {
        return;
    };
    // A process that was stopped since the claim must not send when another may have.
    if claimed_at.elapsed() > START_WITHIN {
        give_back(&context, &[lease], handler.spec.lease).await;
        return;
    }
    let began = Instant::now();
    let event = match (&lease.event, payload) {
        (Some(event), Some(payload)) => delivered(&context, &handler, &lease, event, payload)
            .ok_or_else(Verdict::source_unknown),
        _ => Err(Verdict::payload_expired()),
    };
    let (event, verdict) = match event {
        Ok(event) => {
            let verdict = external::call(&handler, outside.0.as_ref(), &event).await;
            (Some(event), verdict)
        }
        Err(verdict) => (None, verdict),
    };
    settle_call(&context, &handler, &lease, event.as_ref(), verdict, began).await;
}

/// Writes a call's verdict; when the lease was lost meanwhile, the answer is kept as evidence.
async fn settle_call(
    context: &Context,
    handler: &ActiveHandler,
    lease: &Lease,
    event: Option<&Delivered>,
    mut verdict: Verdict,
    began: Instant,
) {
    let end = began + handler.spec.lease + handler.spec.timeout;
    while Instant::now() < end {
        match settle_once(context, handler, lease, event, &verdict, began).await {
            Ok(()) => return,
            Err(NotSettled::Store(error)) => not_written(context, handler, &error).await,
            Err(NotSettled::Undone(error) | NotSettled::Broken(error)) => {
                verdict = Verdict::Unknown { after: None, error };
            }
        }
    }
}

async fn settle_once(
    context: &Context,
    handler: &ActiveHandler,
    lease: &Lease,
    event: Option<&Delivered>,
    verdict: &Verdict,
    began: Instant,
) -> Result<(), NotSettled> {
    // Only an `external` handler writes something of its own.
    let settles = match (&handler.spec.kind, &handler.outside, event) {
        (HandlerKind::External(_), Some(outside), Some(event)) => {
            external::answer_of(verdict).map(|answer| (outside, event, answer))
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
            if let Some((outside, event, answer)) = settles {
                let xact = locked.xact.as_deref().unwrap_or_default();
                external::settle(&transaction, handler, &outside.0, event, answer, xact).await?;
                transaction.plan_by_index().await?;
            }
            transitions.decide(handler, lease, verdict, began);
        } else if locked.finished.is_empty() {
            transitions.evidence(lease, verdict, began);
        }
        transitions.write(&transaction).await?;
        Ok(())
    }
    .await;
    match written {
        Ok(()) => transaction.commit().await?,
        Err(NotSettled::Store(error)) => {
            transaction.rollback(&error).await;
            return Err(NotSettled::Store(error));
        }
        // Left unclean on purpose: the connection is dropped.
        Err(failure) => return Err(failure),
    }
    transitions.report(handler);
    Ok(())
}
