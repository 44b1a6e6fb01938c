//! The claim loop: one per node.
//!
//! It leases no more than can run at once, wakes up by signal, and looks at the table every poll
//! interval in any case. A suspect (its lease was lost before) runs alone: nothing else executes
//! in the process meanwhile, so that a crash tells which delivery caused it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::{Id, JoinSet};

use crate::store::delivery::{self, Lease, Quota};
use crate::store::{Store, StoreError};

use super::{ActiveHandler, Context, DispatchConfig, work};

/// Batches of one transactional handler in flight per node, so that a slow one leaves
/// connections to the others.
const BATCHES_PER_HANDLER: usize = 2;

/// While one batch of a transactional handler is running and its claim found less than a batch, the
/// next claim waits this long: the events that come meanwhile share one transaction. As long as a
/// batch takes on events; a handler that is slower does not hold up those behind it.
const ALONE: Duration = Duration::from_millis(20);

/// Pause after a claim that failed.
const PAUSE: Duration = Duration::from_millis(250);

/// What executes now, and what may hold more work.
#[derive(Default)]
pub(crate) struct Running {
    tasks: JoinSet<()>,
    handler_of: HashMap<Id, i32>,
    /// Tasks per handler: batches or calls.
    count: HashMap<i32, usize>,
    /// Handlers whose last claim was full: more is due, do not wait for a signal.
    hungry: HashMap<i32, bool>,
    /// Last claim that found something but less than a batch, until when the next one waits if
    /// its batch is still running.
    partial: HashMap<i32, Instant>,
}

pub(super) async fn run(mut context: Context, config: DispatchConfig, wake: Arc<Notify>) {
    let mut running = Running::default();
    let mut next_poll = Instant::now();
    let mut suspect_waits = false;
    let mut check_suspects = true;
    // After a suspect the others get a turn before the next one.
    let mut others_first = false;
    loop {
        let stopping = context.is_stopping();
        if stopping && running.tasks.is_empty() {
            return;
        }
        if !stopping {
            let active = context.registry.current();
            if Instant::now() >= next_poll {
                next_poll = Instant::now() + jittered(config.poll);
                for id in active.handlers.keys() {
                    running.hungry.insert(*id, true);
                }
                check_suspects = true;
            }
            if check_suspects && !suspect_waits && !others_first && !active.handlers.is_empty() {
                check_suspects = false;
                let ids: Vec<i32> = active.handlers.keys().copied().collect();
                suspect_waits = suspect_due(&context.store, &ids)
                    .await
                    .unwrap_or_else(|error| pause_on_error(&error));
            }
            if suspect_waits && running.tasks.is_empty() {
                suspect_waits = false;
                match claim_suspect(&context, &active.handlers, &mut running).await {
                    Ok(claimed) => check_suspects = claimed,
                    Err(error) => pause_on_error(&error),
                }
                if !running.tasks.is_empty() {
                    wait_for_all(&mut running).await;
                    running.all_hungry();
                    others_first = true;
                    continue;
                }
            }
            if !suspect_waits {
                let quotas = quotas(&active.handlers, &running, config.connections);
                if !quotas.is_empty()
                    && let Err(error) =
                        claim(&context, &active.handlers, &quotas, &mut running).await
                {
                    tracing::warn!(error = %error, "claim failed");
                    tokio::time::sleep(PAUSE).await;
                }
                if std::mem::take(&mut others_first) {
                    // Nobody would wake us for the next suspect.
                    continue;
                }
            }
        }
        let next_look = running.next_look(next_poll);
        tokio::select! {
            Some(done) = running.tasks.join_next_with_id() => running.ended(done),
            () = wake.notified(), if !stopping => {
                running.all_hungry();
            }
            () = tokio::time::sleep_until(next_look.into()), if !stopping => {}
            changed = context.stopping.changed(), if !stopping => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

impl Running {
    /// Looks for more work of every handler.
    fn all_hungry(&mut self) {
        for hungry in self.hungry.values_mut() {
            *hungry = true;
        }
    }

    /// When to look again at the latest: at the poll, or when a handler with one batch running may
    /// have a second.
    fn next_look(&self, next_poll: Instant) -> Instant {
        let now = Instant::now();
        self.partial
            .iter()
            .filter(|(id, until)| **until > now && self.hungry.get(id).copied().unwrap_or(false))
            .map(|(_, until)| *until)
            .fold(next_poll, Instant::min)
    }

    /// Whether the handler's next events wait for the batch that is running.
    fn waits(&self, handler: i32) -> bool {
        self.partial
            .get(&handler)
            .is_some_and(|until| *until > Instant::now())
    }

    fn ended(&mut self, done: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match done {
            Ok((id, ())) => id,
            Err(error) => {
                if error.is_panic() {
                    // Its leases pass to the reaper.
                    tracing::error!(error = %error, "a dispatch task panicked");
                }
                error.id()
            }
        };
        if let Some(handler) = self.handler_of.remove(&id)
            && let Some(count) = self.count.get_mut(&handler)
        {
            *count = count.saturating_sub(1);
        }
    }

    fn spawn(&mut self, handler_id: i32, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.handler_of.insert(id, handler_id);
        *self.count.entry(handler_id).or_default() += 1;
    }
}

pub(crate) async fn wait_for_all(running: &mut Running) {
    while let Some(done) = running.tasks.join_next_with_id().await {
        running.ended(done);
    }
}

/// How much each handler may claim now.
fn quotas(
    handlers: &std::collections::BTreeMap<i32, Arc<ActiveHandler>>,
    running: &Running,
    connections: usize,
) -> Vec<Quota> {
    let in_transactions: usize = handlers
        .values()
        .filter(|h| is_transactional(h))
        .map(|h| running.count.get(&h.id).copied().unwrap_or(0))
        .sum();
    let mut free = connections.saturating_sub(in_transactions);
    let mut quotas = Vec::new();
    // Starting elsewhere each time, so that the first in the list has no advantage.
    let start = if handlers.is_empty() {
        0
    } else {
        rand::random_range(0..handlers.len())
    };
    for handler in handlers.values().cycle().skip(start).take(handlers.len()) {
        if !running.hungry.get(&handler.id).copied().unwrap_or(true) {
            continue;
        }
        let busy = running.count.get(&handler.id).copied().unwrap_or(0);
        let count = if is_transactional(handler) {
            if busy >= BATCHES_PER_HANDLER || free == 0 || (busy > 0 && running.waits(handler.id)) {
                continue;
            }
            free -= 1;
            handler.spec.batch
        } else {
            let slots = usize::from(handler.spec.concurrency);
            let open = slots.saturating_sub(busy);
            // A claim costs as much as a call's bookkeeping: not one by one.
            if open < slots.div_ceil(4) {
                continue;
            }
            u16::try_from(open).unwrap_or(u16::MAX)
        };
        quotas.push(Quota {
            handler_id: handler.id,
            count,
            lease: handler.spec.lease,
            in_flight: handler.in_flight(),
        });
    }
    quotas
}

fn is_transactional(handler: &ActiveHandler) -> bool {
    handler.outside.is_none()
}

async fn claim(
    context: &Context,
    handlers: &std::collections::BTreeMap<i32, Arc<ActiveHandler>>,
    quotas: &[Quota],
    running: &mut Running,
) -> Result<(), StoreError> {
    let leases = {
        let connection = context.store.dispatch().await?;
        delivery::claim(&connection, quotas).await?
    };
    let claimed_at = Instant::now();
    let mut groups: HashMap<i32, Vec<Lease>> = HashMap::new();
    for lease in leases {
        groups.entry(lease.handler_id).or_default().push(lease);
    }
    for quota in quotas {
        let claimed = groups.get(&quota.handler_id).map_or(0, Vec::len);
        let full = claimed >= usize::from(quota.count);
        running.hungry.insert(quota.handler_id, full);
        if full || claimed == 0 {
            running.partial.remove(&quota.handler_id);
        } else {
            running.partial.insert(quota.handler_id, claimed_at + ALONE);
        }
    }
    for (id, group) in groups {
        if let Some(handler) = handlers.get(&id) {
            start(context, handler, group, claimed_at, false, running).await;
        }
    }
    Ok(())
}

async fn claim_suspect(
    context: &Context,
    handlers: &std::collections::BTreeMap<i32, Arc<ActiveHandler>>,
    running: &mut Running,
) -> Result<bool, StoreError> {
    let quotas: Vec<Quota> = handlers
        .values()
        .map(|h| Quota {
            handler_id: h.id,
            count: 1,
            lease: h.spec.lease,
            in_flight: h.in_flight(),
        })
        .collect();
    let lease = {
        let connection = context.store.dispatch().await?;
        delivery::claim_suspect(&connection, &quotas).await?
    };
    let Some(lease) = lease else { return Ok(false) };
    if let Some(handler) = handlers.get(&lease.handler_id) {
        tracing::info!(event.id = %lease.event_id, handler = %handler.spec.name, "a suspect runs alone");
        start(context, handler, vec![lease], Instant::now(), true, running).await;
    }
    Ok(true)
}

/// Starts the tasks of one handler's leases: one for a transactional batch, one per call.
pub(crate) async fn start(
    context: &Context,
    handler: &Arc<ActiveHandler>,
    leases: Vec<Lease>,
    claimed_at: Instant,
    alone: bool,
    running: &mut Running,
) {
    if is_transactional(handler) {
        let task = work::transactional(
            context.clone(),
            Arc::clone(handler),
            leases,
            claimed_at,
            alone,
        );
        running.spawn(handler.id, task);
        return;
    }
    for call in work::prepare_calls(context, handler, leases, claimed_at).await {
        running.spawn(
            handler.id,
            work::call(context.clone(), Arc::clone(handler), call),
        );
    }
}

async fn suspect_due(store: &Store, handlers: &[i32]) -> Result<bool, StoreError> {
    let connection = store.dispatch().await?;
    delivery::suspect_due(&connection, handlers).await
}

fn pause_on_error<T: Default>(error: &StoreError) -> T {
    tracing::warn!(error = %error, "could not look for suspects");
    T::default()
}

/// Half to one and a half of the interval, so that nodes do not poll in step.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.5 + rand::random::<f64>())
}
