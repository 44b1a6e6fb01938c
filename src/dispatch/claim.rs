//! The claim loop: one per node.
//!
//! It leases no more than can run at once, wakes up by signal, and looks at the table every poll
//! interval in any case. A suspect (its lease was lost before) runs alone: nothing else executes
//! in the process meanwhile, so that a crash tells which delivery caused it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::domain::Priority;
use crate::store::cap::{self, Short, Wanted, Why};
use crate::store::delivery::{self, Lease};
use crate::store::quota::Quota;
use crate::store::{StoreError, Wake, flow};
use crate::telemetry;

use super::flow::{Beside, Room};
use super::running::Running;
use super::work::Back;
use super::{Active, ActiveHandler, Context, DispatchConfig, call, work};

/// Batches of one transactional handler in flight per node, so that a slow one leaves
/// connections to the others.
const BATCHES_PER_HANDLER: usize = 2;

/// While one batch of a transactional handler is running and its claim found less than a batch, the
/// next claim waits this long: the events that come meanwhile share one transaction. As long as a
/// batch takes on events; a handler that is slower does not hold up those behind it.
const ALONE: Duration = Duration::from_millis(20);

/// The next look after another node was claiming for the same capped handler.
const BUSY: Duration = Duration::from_millis(10);

/// The next look after a cap was full, unless something of ours ends before.
const FULL: Duration = Duration::from_millis(50);

/// Pause after a claim that failed.
const PAUSE: Duration = Duration::from_millis(250);

pub(super) async fn run(mut context: Context, config: DispatchConfig, wake: Arc<Wake>) {
    let mut running = Running::default();
    let mut next_poll = Instant::now();
    let mut suspect_waits = false;
    let mut switched = false;
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
            switched |= wake.take_switched();
            if Instant::now() >= next_poll {
                next_poll = Instant::now() + jittered(config.poll);
                running.all_hungry(&active);
                look_for_strays(&context, &active, &mut running).await;
                check_suspects = true;
                switched = true;
            }
            if std::mem::take(&mut switched) {
                look_at_switches(&context, &active, &wake).await;
            }
            if !context.flow.is_known() {
                tokio::time::sleep(PAUSE).await;
                switched = true;
                continue;
            }
            if check_suspects && !suspect_waits && !others_first {
                check_suspects = false;
                suspect_waits = suspect_due(&context, &active, &running, config.poll)
                    .await
                    .unwrap_or_else(|error| pause_on_error(&error));
            }
            if suspect_waits && running.tasks.is_empty() {
                suspect_waits = false;
                match claim_suspect(&context, &active, config.poll, &mut running).await {
                    Ok(claimed) => check_suspects = claimed,
                    Err(error) => pause_on_error(&error),
                }
                if !running.tasks.is_empty() {
                    wait_for_all(&mut running).await;
                    running.all_hungry(&active);
                    others_first = true;
                    continue;
                }
            }
            if !suspect_waits {
                let quotas = quotas(&context, &active, &mut running, config.connections);
                if !quotas.is_empty() {
                    match claim(&context, &active, &quotas, &mut running, &wake).await {
                        // Some had nothing: their share is for those that are waiting.
                        Ok(Left::Share) => continue,
                        Ok(Left::Nothing) => {}
                        Err(error) => {
                            tracing::warn!(error = %error, "claim failed");
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
                if std::mem::take(&mut others_first) {
                    // Nobody would wake us for the next suspect.
                    continue;
                }
            }
        }
        let next_look = running.next_look(next_poll);
        tokio::select! {
            Some(done) = running.tasks.join_next_with_id() => {
                if let Some(handler) = running.ended(done)
                    && context.flow.have_tokens_come_back(handler)
                {
                    running.go_on(handler);
                }
            }
            () = wake.notified(), if !stopping => {
                running.all_hungry(&context.registry.current());
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

pub(crate) async fn wait_for_all(running: &mut Running) {
    while let Some(done) = running.tasks.join_next_with_id().await {
        running.ended(done);
    }
}

/// Reads what is paused. What was set aside for a source that no longer is, is returned beside
/// the claims.
async fn look_at_switches(context: &Context, active: &Active, wake: &Arc<Wake>) {
    match context.flow.refresh(&context.store, active).await {
        Ok(false) => {}
        Ok(true) => {
            let Some(turn) = context.flow.beside(Beside::Back) else {
                return;
            };
            let (store, wake) = (context.store.clone(), Arc::clone(wake));
            tokio::spawn(async move {
                let _turn = turn;
                while let Ok(returned) = store.end_aside().await {
                    wake.work();
                    if returned == 0 {
                        return;
                    }
                }
            });
        }
        Err(error) => tracing::warn!(error = %error, "could not look for pauses"),
    }
}

/// Looks for due work of priorities that a handler's settings do not give.
async fn look_for_strays(context: &Context, active: &Active, running: &mut Running) {
    let others = |handler: &Arc<ActiveHandler>| {
        let known = handler.spec.priorities.known();
        let others = Priority::ALL.into_iter().zip(known);
        let id = handler.id;
        others
            .filter(|(_, known)| !known)
            .map(move |(p, _)| (id, p))
    };
    let others: Vec<(i32, Priority)> = active.handlers.values().flat_map(others).collect();
    let found = async {
        let connection = context.store.dispatch().await?;
        delivery::stray(&connection, &others).await
    }
    .await;
    match found {
        Ok(strays) => {
            for (id, priority) in strays {
                let hungry = running.hungry.entry(id).or_default();
                if let Some(hungry) = hungry.get_mut(priority as usize) {
                    *hungry = true;
                }
            }
        }
        Err(error) => tracing::warn!(error = %error, "could not look for other priorities"),
    }
}

/// How much each handler may claim now.
fn quotas(
    context: &Context,
    active: &Active,
    running: &mut Running,
    connections: usize,
) -> Vec<Quota> {
    let in_transactions: usize = active
        .handlers
        .values()
        .filter(|h| is_transactional(h))
        .map(|h| running.count.get(&h.id).copied().unwrap_or(0))
        .sum();
    let mut free = connections.saturating_sub(in_transactions);
    let mut quotas = Vec::new();
    for handler in in_turn(active) {
        if !running.is_hungry(handler.id)
            || running.is_stopped(handler.id)
            || context.flow.handler_paused(handler.id)
        {
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
            let open = u16::try_from(open).unwrap_or(u16::MAX);
            match context.flow.room(handler) {
                Room::Any => open,
                Room::UpTo(room) => open.min(room),
                Room::Full => continue,
                Room::Not(until) => {
                    running.stop(handler.id, context.flow.moment(until), false);
                    continue;
                }
            }
        };
        quotas.push(Quota {
            handler_id: handler.id,
            count,
            waiting: running.waiting(handler),
            draw: rand::random(),
            lease: handler.spec.lease,
            in_flight: handler.in_flight(),
            cap: handler.spec.cap,
        });
    }
    quotas
}

/// The handlers in the order of their turn for a free connection: drawn anew each time, with the
/// weights of their priorities, so that the first in the list has no advantage and none starves.
fn in_turn(active: &Active) -> Vec<&Arc<ActiveHandler>> {
    let mut turns: Vec<(f64, &Arc<ActiveHandler>)> = active
        .handlers
        .values()
        .map(|handler| {
            let weight = f64::from(handler.spec.priorities.rest.weight());
            (rand::random::<f64>().ln() / weight, handler)
        })
        .collect();
    turns.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    turns.into_iter().map(|(_, handler)| handler).collect()
}

fn is_transactional(handler: &ActiveHandler) -> bool {
    handler.outside.is_none()
}

/// What a claim has left over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    /// A priority had less than its share, and another more; or leases went back, and their room is free again.
    Share,
}

/// Leases what is due within these quotas, and within the caps of capped handlers.
pub(crate) async fn lease(
    context: &Context,
    quotas: &[Quota],
) -> Result<(Vec<Lease>, Vec<Short>), StoreError> {
    let (plain, capped): (Vec<Quota>, Vec<Quota>) =
        quotas.iter().partition(|quota| quota.cap.is_none());
    let connection = context.store.dispatch().await?;
    let mut leases = Vec::new();
    if !plain.is_empty() {
        leases = delivery::claim(&connection, &plain).await?;
    }
    if capped.is_empty() {
        return Ok((leases, Vec::new()));
    }
    match cap::claim(&connection, &capped, Wanted::Due).await {
        Ok(claimed) => {
            leases.extend(claimed.leases);
            Ok((leases, claimed.short))
        }
        // What is leased already must run.
        Err(error) if !leases.is_empty() => {
            tracing::warn!(error = %error, "claim for capped handlers failed");
            Ok((leases, Vec::new()))
        }
        Err(error) => Err(error),
    }
}

async fn claim(
    context: &Context,
    active: &Active,
    quotas: &[Quota],
    running: &mut Running,
    wake: &Arc<Wake>,
) -> Result<Left, StoreError> {
    // Before it is sent: the database counts a call's time from within the statement.
    let claimed_at = Instant::now();
    let (leases, short) = lease(context, quotas).await?;
    let mut groups: HashMap<i32, Vec<Lease>> = HashMap::new();
    for lease in leases {
        groups.entry(lease.handler_id).or_default().push(lease);
    }
    let mut left = Left::Nothing;
    for quota in quotas {
        let id = quota.handler_id;
        let group = groups.get(&id).map(Vec::as_slice).unwrap_or_default();
        if let Some(short) = short.iter().find(|short| short.handler_id == id) {
            // What a priority left of what the cap allows is for the others before anything waits.
            let within = Quota {
                count: short.allowed,
                ..*quota
            };
            if running.fed(&within, group) {
                left = Left::Share;
            } else if short.why == Why::Busy || group.len() >= usize::from(short.allowed) {
                // With less than it allows there is no more, and what comes next must not wait for a token.
                stopped_by_cap(active, *short, running);
            }
            continue;
        }
        let full = group.len() >= usize::from(quota.count);
        if running.fed(quota, group) {
            left = Left::Share;
        }
        if full || group.is_empty() || left == Left::Share {
            running.partial.remove(&id);
        } else {
            running.partial.insert(id, claimed_at + ALONE);
        }
    }
    for (id, group) in groups {
        if let Some(handler) = active.handlers.get(&id) {
            let claimed = group.len();
            let group = without_paused(context, handler, group, wake).await;
            let aside = claimed - group.len();
            let later = start(context, handler, group, claimed_at, false, running).await;
            if aside + later > 0 {
                // A cap that these used up does not stop the others.
                running.go_on(id);
                left = Left::Share;
            }
        }
    }
    Ok(left)
}

/// A cap stood in the way: when to look again.
fn stopped_by_cap(active: &Active, short: Short, running: &mut Running) {
    let (wait, full) = match short.why {
        Why::Busy => (jittered(BUSY), false),
        Why::InFlight => (jittered(FULL), true),
        Why::Rate(wait) => (wait, false),
    };
    if short.why != Why::Busy
        && let Some(handler) = active.handlers.get(&short.handler_id)
    {
        telemetry::capped(&handler.spec.name);
    }
    running.stop(short.handler_id, Instant::now() + wait, full);
}

/// Sets aside what is of a paused source. While that is most of what is found, the rest of what
/// stands in front is set aside in bulk, beside the claims.
async fn without_paused(
    context: &Context,
    handler: &Arc<ActiveHandler>,
    group: Vec<Lease>,
    wake: &Arc<Wake>,
) -> Vec<Lease> {
    let (aside, group): (Vec<Lease>, Vec<Lease>) = group
        .into_iter()
        .partition(|lease| context.flow.source_paused(lease));
    let Some(source) = aside.first().and_then(|l| l.event.as_ref()) else {
        return group;
    };
    work::put_back(context, &aside, Back::Aside, handler.spec.lease).await;
    if aside.len() > group.len()
        && let Some(turn) = context.flow.beside(Beside::Aside)
    {
        let (store, wake) = (context.store.clone(), Arc::clone(wake));
        let (handler_id, source_id) = (handler.id, source.source_id);
        tokio::spawn(async move {
            let _turn = turn;
            while let Ok(set) = store.set_front_aside(handler_id, source_id).await {
                wake.work();
                if set < flow::STEP.unsigned_abs() / 4 {
                    return;
                }
            }
        });
    }
    group
}

/// A suspect of each handler that neither a pause nor a breaker stops.
fn suspect_quotas(context: &Context, active: &Active) -> Vec<Quota> {
    let may = |handler: &&Arc<ActiveHandler>| {
        !context.flow.handler_paused(handler.id)
            && matches!(context.flow.room(handler), Room::Any | Room::UpTo(_))
    };
    let quota = |handler: &Arc<ActiveHandler>| Quota {
        handler_id: handler.id,
        count: 1,
        waiting: [true; 3],
        draw: 0.5,
        lease: handler.spec.lease,
        in_flight: handler.in_flight(),
        cap: handler.spec.cap,
    };
    active.handlers.values().filter(may).map(quota).collect()
}

/// Whether a suspect is due that [`claim_suspect`] would get once nothing else runs here: nothing else
/// begins on this node while one waits.
async fn suspect_due(
    context: &Context,
    active: &Active,
    running: &Running,
    poll: Duration,
) -> Result<bool, StoreError> {
    let mut quotas = suspect_quotas(context, active);
    if quotas.is_empty() {
        return Ok(false);
    }
    let ids: Vec<i32> = active.handlers.keys().copied().collect();
    let connection = context.store.dispatch().await?;
    if context.flow.some_source_paused() {
        flow::set_suspects_aside(&connection, &ids).await?;
    }
    let due = delivery::suspects_due(&connection, &ids).await?;
    quotas.retain(|quota| due.contains(&quota.handler_id));
    if quotas.is_empty() || quotas.iter().any(|quota| quota.cap.is_none()) {
        return Ok(!quotas.is_empty());
    }
    cap::has_room(&connection, &quotas, poll, |id| running.is_busy(id)).await
}

async fn claim_suspect(
    context: &Context,
    active: &Active,
    poll: Duration,
    running: &mut Running,
) -> Result<bool, StoreError> {
    let quotas = suspect_quotas(context, active);
    let mut claimed_at = Instant::now();
    let mut leased = lease_suspect(context, &quotas).await?;
    // A token that comes within the poll: the handler's other events would take it, each time.
    if let (None, Some(wait)) = (&leased.0, leased.1)
        && wait <= poll
    {
        tokio::time::sleep(wait).await;
        // A source may have been paused meanwhile. The claim itself sees which handlers were.
        context.flow.refresh(&context.store, active).await?;
        claimed_at = Instant::now();
        leased = lease_suspect(context, &quotas).await?;
    }
    let Some(lease) = leased.0 else {
        return Ok(false);
    };
    let Some(handler) = active.handlers.get(&lease.handler_id) else {
        return Ok(true);
    };
    if context.flow.source_paused(&lease) {
        work::put_back(context, &[lease], Back::Aside, handler.spec.lease).await;
        return Ok(true);
    }
    tracing::info!(event.id = %lease.event_id, handler = %handler.spec.name, "a suspect runs alone");
    start(context, handler, vec![lease], claimed_at, true, running).await;
    Ok(true)
}

/// Leases one suspect, within the caps of capped handlers; if there is none, how long until the next
/// token of a rate that stood in the way.
pub(crate) async fn lease_suspect(
    context: &Context,
    quotas: &[Quota],
) -> Result<(Option<Lease>, Option<Duration>), StoreError> {
    let (plain, capped): (Vec<Quota>, Vec<Quota>) =
        quotas.iter().partition(|quota| quota.cap.is_none());
    let connection = context.store.dispatch().await?;
    if !plain.is_empty()
        && let Some(lease) = delivery::claim_suspect(&connection, &plain).await?
    {
        return Ok((Some(lease), None));
    }
    if capped.is_empty() {
        return Ok((None, None));
    }
    let claimed = cap::claim(&connection, &capped, Wanted::Suspect).await?;
    let waits = claimed.short.iter().filter_map(|short| match short.why {
        Why::Rate(wait) => Some(wait),
        Why::Busy | Why::InFlight => None,
    });
    let wait = waits.min();
    Ok((claimed.leases.into_iter().next(), wait))
}

/// Starts the tasks of one handler's leases: one for a transactional batch, one per call. Returns how many were put
/// off.
pub(crate) async fn start(
    context: &Context,
    handler: &Arc<ActiveHandler>,
    leases: Vec<Lease>,
    claimed_at: Instant,
    alone: bool,
    running: &mut Running,
) -> usize {
    if leases.is_empty() {
        return 0;
    }
    if is_transactional(handler) {
        let task = work::transactional(
            context.clone(),
            Arc::clone(handler),
            leases,
            claimed_at,
            alone,
        );
        running.spawn(handler.id, task);
        return 0;
    }
    call::start(context, handler, leases, claimed_at, alone, running).await
}

fn pause_on_error<T: Default>(error: &StoreError) -> T {
    tracing::warn!(error = %error, "could not look for suspects");
    T::default()
}

/// Half to one and a half of the interval, so that nodes do not poll in step.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.5 + rand::random::<f64>())
}
