//! What stops a claim: pauses, a receiver that does not work, repetitions beyond their budget.
//!
//! Pauses stand in the database and are read at every poll. Breaker and retry budget are this
//! node's own: each node finds out by its own tries, and one that starts begins with a closed one.
//! Caps over all nodes are kept by [`crate::store::cap`].

mod breaker;
mod budget;
#[cfg(test)]
mod outage;
mod window;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::store::delivery::Lease;
use crate::store::flow::Switches;
use crate::store::{Store, StoreError};
use crate::telemetry;

use super::{Active, ActiveHandler};

pub(crate) use breaker::Room;
pub use breaker::{BreakerPolicy, BreakerState};

use breaker::Breaker;
use budget::{RetryBudget, WINDOW};

/// What this node knows of the flow of its handlers.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Times of breakers and budgets are since then.
    began: Instant,
    /// `None` until it was read for the first time: then nothing is claimed.
    switches: RwLock<Option<Switches>>,
    gates: Mutex<HashMap<i32, Gate>>,
    /// Handlers of which a task gave tokens of their rate back.
    tokens_back: Mutex<HashSet<i32>>,
    aside: Arc<Semaphore>,
    back: Arc<Semaphore>,
}

/// What is done in bulk beside the claims: one of each at a time, since they share the connections
/// of the reaper and the gauges.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Beside {
    /// Setting aside what a paused source has in front.
    Aside,
    /// Returning what was set aside.
    Back,
}

/// Breaker and retry budget of one handler.
#[derive(Debug)]
struct Gate {
    breaker: Option<Breaker>,
    budget: RetryBudget,
}

/// A try that has begun; dropped without a word, it tells nothing of the receiver.
#[derive(Debug)]
pub(crate) struct Begun {
    flow: Arc<Flow>,
    handler: Arc<ActiveHandler>,
    epoch: u32,
    /// Whether it is a repetition.
    again: bool,
    told: bool,
}

/// What of a claim begins, and what has to wait how long.
#[derive(Debug)]
pub(crate) struct Tries {
    pub(crate) begun: Vec<(Lease, Begun)>,
    pub(crate) deferred: Vec<(Lease, Duration)>,
}

impl Begun {
    /// Whether the receiver answered as one that works.
    pub(crate) fn ended(mut self, good: bool) {
        self.told = true;
        self.flow.ended(&self.handler, self.epoch, Some(good));
    }

    /// It has to wait for another: no call was made, and the retry budget has not spent it.
    pub(crate) fn put_off(self) {
        let now = self.flow.began.elapsed();
        self.flow.with_gate(&self.handler, |gate| {
            gate.budget.put_off(self.again, now);
        });
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.told {
            self.flow.ended(&self.handler, self.epoch, None);
        }
    }
}

impl Flow {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            switches: RwLock::default(),
            gates: Mutex::default(),
            tokens_back: Mutex::default(),
            aside: Arc::new(Semaphore::new(1)),
            back: Arc::new(Semaphore::new(1)),
        })
    }

    /// Reads what is paused; tells whether something is set aside that no pause keeps.
    pub(crate) async fn refresh(&self, store: &Store, active: &Active) -> Result<bool, StoreError> {
        let read = store.switches().await?;
        let left_aside = read.left_aside;
        for handler in active.handlers.values() {
            let paused = read.handlers.contains(&handler.id);
            telemetry::handler_paused(&handler.spec.name, paused);
        }
        for (name, (id, _)) in &active.sources {
            telemetry::source_paused(name, read.sources.contains(id));
        }
        let mut known = self
            .switches
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let differs = known.as_ref().map_or_else(
            || !read.handlers.is_empty() || !read.sources.is_empty(),
            |known| known.handlers != read.handlers || known.sources != read.sources,
        );
        if differs {
            let handlers: Vec<_> = active
                .handlers
                .values()
                .filter(|handler| read.handlers.contains(&handler.id))
                .map(|handler| handler.spec.name.as_str())
                .collect();
            let sources: Vec<_> = active
                .sources
                .iter()
                .filter(|(_, (id, _))| read.sources.contains(id))
                .map(|(name, _)| name.as_str())
                .collect();
            tracing::info!(?handlers, ?sources, "paused now");
        }
        *known = Some(read);
        Ok(left_aside)
    }

    /// Whether it is known what is paused.
    pub(crate) fn is_known(&self) -> bool {
        let known = self.switches.read().unwrap_or_else(PoisonError::into_inner);
        known.is_some()
    }

    pub(crate) fn handler_paused(&self, id: i32) -> bool {
        let known = self.switches.read().unwrap_or_else(PoisonError::into_inner);
        known
            .as_ref()
            .is_none_or(|known| known.handlers.contains(&id))
    }

    /// The right to do this now; `None` while it is being done. What is left then is found again by the
    /// next claim or poll.
    pub(crate) fn beside(&self, what: Beside) -> Option<OwnedSemaphorePermit> {
        let turn = match what {
            Beside::Aside => &self.aside,
            Beside::Back => &self.back,
        };
        Arc::clone(turn).try_acquire_owned().ok()
    }

    /// Whether any source is paused.
    pub(crate) fn some_source_paused(&self) -> bool {
        let known = self.switches.read().unwrap_or_else(PoisonError::into_inner);
        known
            .as_ref()
            .is_some_and(|known| !known.sources.is_empty())
    }

    /// Whether a lease is of an event whose source is paused.
    pub(crate) fn source_paused(&self, lease: &Lease) -> bool {
        let known = self.switches.read().unwrap_or_else(PoisonError::into_inner);
        let source = lease.event.as_ref().map(|event| event.source_id);
        source.is_some_and(|id| {
            known
                .as_ref()
                .is_some_and(|known| known.sources.contains(&id))
        })
    }

    /// Tokens of the handler's rate have come back: what it stopped may go on.
    pub(crate) fn tokens_came_back(&self, handler: i32) {
        let mut back = self
            .tokens_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        back.insert(handler);
    }

    /// Whether they have since it was asked last.
    pub(crate) fn have_tokens_come_back(&self, handler: i32) -> bool {
        let mut back = self
            .tokens_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        back.remove(&handler)
    }

    /// How many tries of a handler may begin; until when none may, as a moment.
    pub(crate) fn room(&self, handler: &ActiveHandler) -> Room {
        if !is_outside(handler) {
            return Room::Any;
        }
        let now = self.began.elapsed();
        self.with_gate(handler, |gate| {
            let Some(breaker) = &mut gate.breaker else {
                return Room::Any;
            };
            let before = breaker.state();
            let room = breaker.room(now);
            if breaker.state() != before {
                tracing::info!(handler = %handler.spec.name, "breaker half-open: a few tries go through");
                telemetry::breaker(&handler.spec.name, state_number(breaker.state()));
            }
            room
        })
    }

    /// The moment of a time that [`Flow::room`] named.
    pub(crate) fn moment(&self, time: Duration) -> Instant {
        self.began + time
    }

    /// Begins the tries of these leases. Repetitions beyond the retry budget come back, each with
    /// the time that it has to wait; what runs alone is never held up.
    pub(crate) fn begin(
        self: &Arc<Self>,
        handler: &Arc<ActiveHandler>,
        leases: Vec<Lease>,
        alone: bool,
    ) -> Tries {
        let now = self.began.elapsed();
        let (mut begun, mut deferred) = (Vec::new(), Vec::new());
        self.with_gate(handler, |gate| {
            for lease in leases {
                let again = lease.progress.failures > 0 || lease.losses > 0;
                if gate.budget.begin(again, now) || alone {
                    let epoch = gate.breaker.as_mut().map_or(0, Breaker::begun);
                    let ticket = Begun {
                        flow: Arc::clone(self),
                        handler: Arc::clone(handler),
                        epoch,
                        again,
                        told: false,
                    };
                    begun.push((lease, ticket));
                } else {
                    // Spread over the time that the budget looks back upon.
                    let wait = WINDOW.mul_f64(0.25 + 0.75 * rand::random::<f64>());
                    deferred.push((lease, wait));
                }
            }
        });
        if !deferred.is_empty() {
            telemetry::retries_deferred(&handler.spec.name, deferred.len() as u64);
        }
        Tries { begun, deferred }
    }

    fn ended(&self, handler: &ActiveHandler, epoch: u32, good: Option<bool>) {
        let now = self.began.elapsed();
        let changed = self.with_gate(handler, |gate| {
            let Some(good) = good else {
                if let Some(breaker) = &mut gate.breaker {
                    breaker.unknown(epoch);
                }
                return None;
            };
            gate.budget.ended(good, now);
            let breaker = gate.breaker.as_mut()?;
            breaker.ended(epoch, good, now, rand::random())
        });
        let name = &handler.spec.name;
        match changed {
            Some(BreakerState::Open) => {
                tracing::warn!(handler = %name, "breaker open: its receiver does not work; its deliveries wait");
                telemetry::breaker_opened(name);
            }
            Some(BreakerState::Closed) => {
                tracing::info!(handler = %name, "breaker closed: its receiver works again");
            }
            _ => return,
        }
        if let Some(state) = changed {
            telemetry::breaker(name, state_number(state));
        }
    }

    /// Where the breaker of a handler stands; `None` for one without.
    pub(crate) fn breaker(&self, handler: &ActiveHandler) -> Option<BreakerState> {
        if !is_outside(handler) {
            return None;
        }
        self.with_gate(handler, |gate| gate.breaker.as_ref().map(Breaker::state))
    }

    /// With the handler's gate, made anew when its settings have changed.
    fn with_gate<T>(&self, handler: &ActiveHandler, run: impl FnOnce(&mut Gate) -> T) -> T {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        let spec = &handler.spec;
        let made = || Gate {
            breaker: spec.breaker.map(|policy| {
                telemetry::breaker(&spec.name, state_number(BreakerState::Closed));
                Breaker::new(policy, spec.concurrency)
            }),
            budget: RetryBudget::new(spec.retry_share),
        };
        let gate = gates.entry(handler.id).or_insert_with(made);
        let fits = match (&gate.breaker, spec.breaker) {
            (Some(breaker), Some(policy)) => breaker.is_for(policy, spec.concurrency),
            (None, None) => true,
            _ => false,
        };
        if !fits || !gate.budget.is_for(spec.retry_share) {
            *gate = made();
        }
        run(gate)
    }
}

/// Whether a handler's work is done by somebody else, who may be down while we are not.
fn is_outside(handler: &ActiveHandler) -> bool {
    handler.outside.is_some()
}

/// As the metric has it.
fn state_number(state: BreakerState) -> f64 {
    match state {
        BreakerState::Closed => 0.0,
        BreakerState::HalfOpen => 1.0,
        BreakerState::Open => 2.0,
    }
}
