//! A ready delivery becomes its outcome.
//!
//! ```text
//! claim::run            leases due deliveries, bounded by what may run at once
//!  ├ flow                 what is paused, what fails, how many repetitions
//!  ├ work::transactional  sql, function: many per transaction
//!  │  └ settle::begin      lock rows -> read outcomes -> handler in a savepoint -> transitions -> COMMIT
//!  └ call::run            http, external: call, then settle
//! reap::run             expired leases: suspects, poison, calls whose result is unknown
//! reconcile::run        uncertain deliveries: late answers, probes, a person's task
//! ```
//!
//! Every write proves its lease token; the database's clock alone decides when a lease ends.

mod active;
mod call;
pub(crate) mod claim;
pub(crate) mod flow;
pub mod handler;
mod newer;
pub(crate) mod reap;
pub(crate) mod reconcile;
pub(crate) mod running;
mod settle;
mod work;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::store::{Store, Wake};

pub(crate) use active::{Active, ActiveHandler, Outside, Registry};
pub(crate) use flow::Flow;
pub use flow::{BreakerPolicy, BreakerState};
pub(crate) use handler::http::{Calls, client as http_client};
pub(crate) use handler::rules;
pub use handler::{
    Answer, Delivered, Emit, External, Function, HandlerError, HandlerKind, HandlerSpec, HttpProbe,
    HttpTarget, HttpUnknown, RETRY_SHARE, Settle, SpecError, Work,
};

/// Settings of a node's dispatcher.
#[derive(Debug, Clone, Copy)]
pub struct DispatchConfig {
    /// Longest time between two looks at the table; wake-ups only shorten it.
    pub poll: Duration,
    /// How long a shutdown waits for running handlers.
    pub grace: Duration,
    /// Transactions of handlers at once, each on a connection of its own.
    pub connections: usize,
}

impl Default for DispatchConfig {
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(500),
            grace: Duration::from_secs(25),
            connections: 4,
        }
    }
}

/// What every part of the dispatcher needs.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    pub(crate) flow: Arc<Flow>,
    pub(crate) stopping: watch::Receiver<bool>,
    /// Told when a handler may have emitted something.
    pub(crate) emitted: Arc<Notify>,
    /// Told when an operation has ended.
    pub(crate) wake: Arc<Wake>,
}

impl Context {
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}

/// A running dispatcher.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    stop: watch::Sender<bool>,
    claims: JoinHandle<()>,
    reaper: JoinHandle<()>,
    reconciler: JoinHandle<()>,
    grace: Duration,
}

impl Dispatcher {
    /// Starts the claim loop, the reaper and what looks after uncertain deliveries.
    pub(crate) fn start(
        store: Store,
        registry: Arc<Registry>,
        flow: Arc<Flow>,
        config: DispatchConfig,
        wake: Arc<Wake>,
        emitted: Arc<Notify>,
    ) -> Self {
        let (stop, stopping) = watch::channel(false);
        let context = Context {
            store,
            registry,
            flow,
            stopping,
            emitted,
            wake: Arc::clone(&wake),
        };
        Self {
            stop,
            claims: tokio::spawn(claim::run(context.clone(), config, wake)),
            reaper: tokio::spawn(reap::run(context.clone())),
            reconciler: tokio::spawn(reconcile::run(context)),
            grace: config.grace,
        }
    }

    /// Stops claiming, gives unstarted leases back, waits for running handlers up to the grace
    /// time. What runs longer is abandoned: its transaction rolls back, and a call counts as lost when
    /// its lease ends.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        tracing::info!("nothing more is claimed; running handlers may end");
        self.reaper.abort();
        // A question that is under way is asked again by another node.
        self.reconciler.abort();
        let claims = self.claims.abort_handle();
        if tokio::time::timeout(self.grace, self.claims).await.is_err() {
            tracing::warn!("handlers were still running at the end of the grace time");
            claims.abort();
        }
    }
}
