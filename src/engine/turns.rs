//! One turn at a time of what a node does by itself: write a batch, claim, settle, give back, reap.
//!
//! A door for the interleaving explorer (`tests/it/interleave`), which has to begin each of them at
//! a moment of its choice. What a turn runs is the node's own code from the batch to the COMMIT;
//! only the loops that decide *when* are left out. Not part of the crate's interface, and nothing
//! calls it, so no release binary holds it. It is not behind a feature: `cargo test` would have to
//! name it, and the binary under test would not be the one that is shipped.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::dispatch::{
    ActiveHandler, Context, Flow, HandlerSpec, Registry, claim, http_client, reap, running,
};
use crate::ingest::{self, Receipt, Submission, Unavailable, routes_of};
use crate::provider::Source;
use crate::store::delivery::Lease;
use crate::store::quota::Quota;
use crate::store::{Store, StoreError};

use super::{EngineError, activate};

/// A node without its loops.
#[derive(Debug, Clone)]
pub struct Turns {
    context: Context,
    /// Dropped, it would tell running work that the node is gone.
    _stop: Arc<watch::Sender<bool>>,
}

/// Leases of one handler that are claimed and not begun. A clone is what a node holds that was
/// copied while it ran.
#[derive(Debug, Clone)]
pub struct Claimed {
    handler: Arc<ActiveHandler>,
    leases: Vec<Lease>,
    alone: bool,
}

impl Claimed {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.leases.len()
    }
}

impl Turns {
    /// Registers the names, as a start does, and starts nothing.
    ///
    /// # Errors
    ///
    /// As [`super::Engine::start`].
    pub async fn new(
        store: Store,
        sources: Vec<Source>,
        handlers: Vec<HandlerSpec>,
    ) -> Result<Self, EngineError> {
        let registry = Arc::new(Registry::default());
        let http = http_client().map_err(|error| EngineError::Client(error.to_string()))?;
        registry.swap(activate(&store, &http, sources, handlers).await?);
        let (stop, stopping) = watch::channel(false);
        Ok(Self {
            context: Context {
                store,
                registry,
                flow: Flow::new(),
                stopping,
                emitted: Arc::default(),
                wake: Arc::default(),
            },
            _stop: Arc::new(stop),
        })
    }

    /// The store, for commands and queries.
    pub fn store(&self) -> &Store {
        &self.context.store
    }

    /// Writes requests as one batch.
    pub async fn write(&self, mut batch: Vec<Submission>) -> Vec<Result<Receipt, Unavailable>> {
        let active = self.context.registry.current();
        for submission in &mut batch {
            if let Some((id, _)) = active.sources.get(&submission.source.name) {
                submission.source_id = *id;
            }
            let only = active.operations.get(&submission.source_id).copied();
            submission.routes = routes_of(&active.routes, submission, only);
        }
        let batch: Vec<&Submission> = batch.iter().collect();
        ingest::write(&self.context.store, &batch).await
    }

    /// Leases what is due, up to a batch of the only handler.
    ///
    /// # Errors
    ///
    /// As the claim itself.
    pub async fn claim(&self) -> Result<Option<Claimed>, StoreError> {
        let Some((handler, quota)) = self.handler() else {
            return Ok(None);
        };
        let (leases, _) = claim::lease(&self.context, &[quota]).await?;
        Ok((!leases.is_empty()).then_some(Claimed {
            handler,
            leases,
            alone: false,
        }))
    }

    /// Leases one suspect of the only handler.
    ///
    /// # Errors
    ///
    /// As the claim itself.
    pub async fn claim_suspect(&self) -> Result<Option<Claimed>, StoreError> {
        let Some((handler, quota)) = self.handler() else {
            return Ok(None);
        };
        let (lease, _) = claim::lease_suspect(&self.context, &[quota]).await?;
        Ok(lease.map(|lease| Claimed {
            handler,
            leases: vec![lease],
            alone: true,
        }))
    }

    /// Works on the leases until each is settled, put back or given up.
    pub async fn run(&self, claimed: Claimed) {
        run(&self.context, claimed).await;
    }

    /// Does with the leases what a node does that is told to stop: it gives them back.
    pub async fn give_back(&self, claimed: Claimed) {
        let (_stop, stopping) = watch::channel(true);
        let context = Context {
            stopping,
            ..self.context.clone()
        };
        run(&context, claimed).await;
    }

    /// One sweep of the reaper: how many leases had ended.
    ///
    /// # Errors
    ///
    /// As the sweep itself.
    pub async fn reap(&self) -> Result<usize, StoreError> {
        reap::sweep(&self.context.store, &self.context.registry.current()).await
    }

    /// Looks at the lanes that commits may have left without a head; gives how many have one now.
    ///
    /// # Errors
    ///
    /// As the look itself.
    pub async fn look_at_lanes(&self) -> Result<u64, StoreError> {
        let lanes = self.context.store.take_lanes();
        if lanes.is_empty() {
            return Ok(0);
        }
        let looked = self.context.store.promote_heads(&lanes).await;
        looked.error.map_or(Ok(looked.promoted), Err)
    }

    fn handler(&self) -> Option<(Arc<ActiveHandler>, Quota)> {
        let active = self.context.registry.current();
        let handler = active.handlers.values().next()?;
        let quota = Quota {
            handler_id: handler.id,
            count: handler.spec.batch,
            waiting: handler.spec.priorities.known(),
            draw: 0.5,
            lease: handler.spec.lease,
            in_flight: handler.in_flight(),
            cap: handler.spec.cap,
        };
        Some((Arc::clone(handler), quota))
    }
}

async fn run(context: &Context, claimed: Claimed) {
    let mut running = running::Running::default();
    claim::start(
        context,
        &claimed.handler,
        claimed.leases,
        Instant::now(),
        claimed.alone,
        &mut running,
    )
    .await;
    claim::wait_for_all(&mut running).await;
}
