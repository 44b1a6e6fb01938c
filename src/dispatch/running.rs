//! What executes on this node, and which handlers may have more work.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use tokio::task::{Id, JoinSet};

use crate::domain::{ByPriority, Priority};
use crate::store::delivery::Lease;
use crate::store::quota::Quota;

use super::{Active, ActiveHandler};

/// What executes now, and what may hold more work.
#[derive(Default)]
pub(crate) struct Running {
    pub(super) tasks: JoinSet<()>,
    pub(super) handler_of: HashMap<Id, i32>,
    /// Tasks per handler: batches or calls.
    pub(super) count: HashMap<i32, usize>,
    /// Priorities of handlers whose last claim was full: more is due, do not wait for a signal.
    pub(super) hungry: HashMap<i32, ByPriority<bool>>,
    /// Last claim that found something but less than a batch, until when the next one waits if
    /// its batch is still running.
    pub(super) partial: HashMap<i32, Instant>,
    /// Handlers that a cap or a breaker stopped, until when.
    pub(super) later: HashMap<i32, Instant>,
    /// Of these, those that may go on when something of theirs ends.
    pub(super) full: HashSet<i32>,
}

impl Running {
    /// Looks for more work of every handler.
    pub(super) fn all_hungry(&mut self, active: &Active) {
        for (id, handler) in &active.handlers {
            let hungry = self.hungry.entry(*id).or_default();
            for (hungry, known) in hungry.iter_mut().zip(handler.spec.priorities.known()) {
                *hungry |= known;
            }
        }
    }

    /// The priorities that may have more.
    pub(super) fn waiting(&self, handler: &ActiveHandler) -> ByPriority<bool> {
        let hungry = self.hungry.get(&handler.id).copied();
        hungry.unwrap_or_else(|| handler.spec.priorities.known())
    }

    pub(super) fn is_hungry(&self, handler: i32) -> bool {
        self.hungry
            .get(&handler)
            .is_none_or(|hungry| hungry.contains(&true))
    }

    /// When to look again at the latest: at the poll, when a handler with one batch running may
    /// have a second, or when what stopped one is over.
    pub(super) fn next_look(&self, next_poll: Instant) -> Instant {
        let now = Instant::now();
        self.partial
            .iter()
            .chain(&self.later)
            .filter(|(id, until)| **until > now && self.is_hungry(**id))
            .map(|(_, until)| *until)
            .fold(next_poll, Instant::min)
    }

    /// Whether something of the handler executes now.
    pub(super) fn is_busy(&self, handler: i32) -> bool {
        self.count.get(&handler).is_some_and(|count| *count > 0)
    }

    /// Whether something stops the handler's claims for a while.
    pub(super) fn is_stopped(&self, handler: i32) -> bool {
        self.later
            .get(&handler)
            .is_some_and(|until| *until > Instant::now())
    }

    pub(super) fn stop(&mut self, handler: i32, until: Instant, full: bool) {
        self.later.insert(handler, until);
        if full {
            self.full.insert(handler);
        } else {
            self.full.remove(&handler);
        }
    }

    /// What stopped the handler's claims is over.
    pub(super) fn go_on(&mut self, handler: i32) {
        self.later.remove(&handler);
        self.full.remove(&handler);
    }

    /// Whether the handler's next events wait for the batch that is running.
    pub(super) fn waits(&self, handler: i32) -> bool {
        self.partial
            .get(&handler)
            .is_some_and(|until| *until > Instant::now())
    }

    /// Of which handler a task has ended.
    pub(super) fn ended(&mut self, done: Result<(Id, ()), tokio::task::JoinError>) -> Option<i32> {
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
        let handler = self.handler_of.remove(&id)?;
        if let Some(count) = self.count.get_mut(&handler) {
            *count = count.saturating_sub(1);
            if self.full.remove(&handler) {
                self.later.remove(&handler);
            }
        }
        Some(handler)
    }

    pub(super) fn spawn(
        &mut self,
        handler_id: i32,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.handler_of.insert(id, handler_id);
        *self.count.entry(handler_id).or_default() += 1;
    }

    /// Notes which priorities may have more: those that filled their share. Tells whether others
    /// left some of theirs, which is for these.
    pub(super) fn fed(&mut self, quota: &Quota, group: &[Lease]) -> bool {
        let mut hungry = quota.waiting;
        for ((hungry, priority), asked) in hungry.iter_mut().zip(Priority::ALL).zip(quota.shares())
        {
            let found = group.iter().filter(|l| l.priority == priority).count();
            *hungry &= asked == 0 || found >= usize::from(asked);
        }
        let left = group.len() < usize::from(quota.count) && hungry.contains(&true);
        let fewer = hungry != quota.waiting;
        self.hungry.insert(quota.handler_id, hungry);
        left && fewer
    }
}
