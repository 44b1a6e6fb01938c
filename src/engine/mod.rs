//! The parts put together, for `serve` and for your own application.

mod awaited;
mod background;
mod intent;
mod operations;
mod refusals;
#[doc(hidden)]
pub mod turns;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;

use crate::dispatch::{
    Active, ActiveHandler, BreakerState, Calls, DispatchConfig, Dispatcher, Flow, HandlerKind,
    HandlerSpec, Outside, Registry, SpecError, http_client, rules,
};
use crate::domain::{Digest, Refusal, Routes, Taking};
use crate::ingest::relay::{self, Internals};
use crate::ingest::{Ingest, IngestConfig, Receipt, Report, Submission, Unavailable, routes_of};
use crate::provider::{self, Provider, SettingError, Source, internal};
use crate::store::ledger::OtherDatabase;
use crate::store::registry::{Name, SqlFunction};
use crate::store::transaction::is_connection_error;
use crate::store::{Store, StoreError, Wake};
use crate::telemetry;

pub use awaited::Waited;
pub use intent::Reserved;
pub use operations::ActiveOperation;

use awaited::Awaited;
use refusals::Refusals;

/// How long a good answer of the readiness probe holds.
const READY_HOLDS: Duration = Duration::from_secs(1);
/// Longest wait for the answer of a readiness probe, whoever still asks.
const PROBE_TIME: Duration = Duration::from_secs(30);
/// Longest wait at shutdown for what is still queued. None of it was acknowledged.
const FLUSH: Duration = Duration::from_secs(10);
/// Longest wait at the start for the database of a `sql` handler that has its own.
const OTHER_READY: Duration = Duration::from_secs(3);

/// What an engine runs with.
#[derive(Debug, Clone, Default)]
pub struct EngineConfig {
    /// Registered senders.
    pub sources: Vec<Source>,
    /// What reacts.
    pub handlers: Vec<HandlerSpec>,
    /// The ingest queue.
    pub ingest: IngestConfig,
    /// The dispatcher; `None` for a node that only receives.
    pub dispatch: Option<DispatchConfig>,
    /// Clients of operations that may wait on this node at once; further ones are answered 202. `None`:
    /// 10,000.
    pub waiting: Option<usize>,
}

/// A source with its registry id.
#[derive(Debug, Clone)]
pub struct ActiveSource {
    /// Registry id.
    pub id: i32,
    /// The source.
    pub source: Arc<Source>,
    /// The set it was found in: a request is fanned out by the table it began under, whatever a
    /// reload changes while its body arrives.
    active: Arc<Active>,
}

/// A refused request, for the counter, the log and `rejected`.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The source, if the path named one.
    pub source: Option<ActiveSource>,
    /// Why.
    pub refusal: Refusal,
    /// SHA-256 of the body as far as read.
    pub digest: Option<Digest>,
    /// Bytes of the body as far as read.
    pub size: u64,
    /// Peer address.
    pub peer: Option<std::net::IpAddr>,
}

/// Why an engine cannot start or reload; nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The database, or what is stored there contradicts the configuration (a changed id recipe,
    /// a retired handler, a missing SQL function).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A signing secret cannot be used.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// A handler cannot be run with its settings.
    #[error("handler {handler:?}: {problem}")]
    Handler {
        /// Its name.
        handler: String,
        /// What is wrong.
        problem: SpecError,
    },
    /// The HTTP client for `http` handlers cannot be made.
    #[error("HTTP client: {0}")]
    Client(String),
}

/// The assembled system. Cheap to clone; the last one to `shutdown` it ends it for all.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Inner>);

/// The readiness probe: its last good answer, and the one under way.
#[derive(Debug, Default)]
struct Probe {
    good_at: Option<Instant>,
    running: Option<JoinHandle<Result<(), StoreError>>>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    /// What `http` handlers call with.
    http: reqwest::Client,
    registry: Arc<Registry>,
    flow: Arc<Flow>,
    wake: Arc<Wake>,
    awaited: Arc<Awaited>,
    ingest: Ingest,
    refusals: Refusals,
    draining: AtomicBool,
    probe: Mutex<Probe>,
    dispatcher: Mutex<Option<Dispatcher>>,
    background: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Registers the names, makes partitions, starts ingest, dispatcher and house-keeping.
    ///
    /// # Errors
    ///
    /// [`EngineError`]; nothing was started.
    pub async fn start(store: Store, config: EngineConfig) -> Result<Self, EngineError> {
        store.check_pooling().await?;
        store.make_partitions().await?;
        let registry = Arc::new(Registry::default());
        let http = http_client().map_err(|error| EngineError::Client(error.to_string()))?;
        registry.swap(activate(&store, &http, config.sources, config.handlers).await?);

        let stored = Arc::new(Notify::new());
        let wake = Arc::new(Wake::default());
        let emitted = Arc::new(Notify::new());
        let flow = Flow::new();
        let ingest = Ingest::start(store.clone(), config.ingest, Arc::clone(&stored));
        let dispatcher = config.dispatch.map(|dispatch| {
            Dispatcher::start(
                store.clone(),
                Arc::clone(&registry),
                Arc::clone(&flow),
                dispatch,
                Arc::clone(&wake),
                Arc::clone(&emitted),
            )
        });
        let relayed = Arc::clone(&registry);
        let relay = relay::run(
            store.clone(),
            move || internals(&relayed.current()),
            emitted,
            Arc::clone(&stored),
        );
        let refusals = Refusals::start(store.clone());
        let most = config.waiting.unwrap_or(awaited::WAITING_MAX);
        let (awaited, for_waiting) = Awaited::start(&store, &wake, most);
        let mut background = vec![
            tokio::spawn(relay),
            tokio::spawn(background::keep(store.clone())),
            tokio::spawn(background::promote(store.clone(), Arc::clone(&stored))),
            tokio::spawn(background::mend_lanes(store.clone(), Arc::clone(&stored))),
            tokio::spawn(background::measure(store.clone(), Arc::clone(&registry))),
            tokio::spawn(background::signal(
                store.clone(),
                Arc::clone(&stored),
                Arc::clone(&wake),
            )),
        ];
        background.extend(for_waiting);
        if dispatcher.is_some() {
            let replay = background::replay(store.clone(), Arc::clone(&registry), stored);
            background.push(tokio::spawn(replay));
        }
        Ok(Self(Arc::new(Inner {
            store,
            http,
            registry,
            flow,
            wake,
            awaited,
            ingest,
            refusals,
            draining: AtomicBool::new(false),
            probe: Mutex::default(),
            dispatcher: Mutex::new(dispatcher),
            background,
        })))
    }

    /// Swaps sources and handlers; requests and deliveries under way end under the old ones.
    ///
    /// # Errors
    ///
    /// [`EngineError`]; the old ones stay.
    pub async fn reload(
        &self,
        sources: Vec<Source>,
        handlers: Vec<HandlerSpec>,
    ) -> Result<(), EngineError> {
        let active = activate(&self.0.store, &self.0.http, sources, handlers).await?;
        let names = self.0.store.source_names().await?;
        self.0.registry.swap(active);
        self.0.registry.rename(names);
        Ok(())
    }

    /// The source of this name that takes requests.
    pub fn source(&self, name: &str) -> Option<ActiveSource> {
        let active = self.0.registry.current();
        let (id, source) = active.sources.get(name).cloned()?;
        if !source.provider.receives_requests() {
            return None;
        }
        Some(ActiveSource { id, source, active })
    }

    /// Fans the items out, then waits until the request is durable. Dropping the future does not
    /// stop the write.
    ///
    /// # Errors
    ///
    /// [`Unavailable`]: nothing may be acknowledged.
    pub async fn submit(
        &self,
        from: &ActiveSource,
        mut submission: Submission,
    ) -> Result<Receipt, Unavailable> {
        let name = submission.source.name.clone();
        let only = from.active.operations.get(&from.id).copied();
        submission.routes = routes_of(&from.active.routes, &submission, only);
        for item in &mut submission.items {
            without_nul(&mut item.provider_id);
            without_nul(&mut item.event_type);
            without_nul(&mut item.entity);
            without_nul(&mut item.account);
        }
        let report = Report::of(&submission);
        let correlation_id = submission.request.correlation_id;
        let answer = self.0.ingest.submit(submission).await;
        match &answer {
            Ok(receipt) => report.stored(receipt),
            Err(error) => {
                telemetry::unavailable(&name, error.reason);
                tracing::error!(source = %name, reason = error.reason, %correlation_id, "not stored: answered 503");
            }
        }
        answer
    }

    /// Counts, logs (rate-limited) and samples a refused request. Never waits.
    pub fn reject(&self, rejection: &Rejection) {
        self.0.refusals.add(rejection);
    }

    /// Where the breaker of a handler stands on this node; `None` for a handler without one.
    pub fn breaker(&self, handler: i32) -> Option<BreakerState> {
        let active = self.0.registry.current();
        self.0.flow.breaker(active.handlers.get(&handler)?)
    }

    /// Has this node look for pauses at once; the others hear of them by themselves.
    pub fn look_for_pauses(&self) {
        self.0.wake.switched();
    }

    /// The store, for queries.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Whether the node is on its way out (`/readyz` answers 503).
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    /// Marks the node as on its way out; it works on until [`Engine::shutdown`].
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// Stops claiming, gives unstarted leases back, waits for running handlers up to the grace
    /// time, writes what is still queued.
    pub async fn shutdown(&self) {
        self.drain();
        self.release_waiting();
        if let Some(dispatcher) = self.0.dispatcher.lock().await.take() {
            dispatcher.stop().await;
        }
        if tokio::time::timeout(FLUSH, self.0.ingest.flush())
            .await
            .is_err()
        {
            tracing::warn!("requests were still queued at the end; none of them was acknowledged");
        }
        self.0.refusals.flush().await;
        for task in &self.0.background {
            task.abort();
        }
    }

    /// Whether the database takes writes.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: it does not.
    pub async fn ready(&self) -> Result<(), StoreError> {
        // One probe at a time, and a good answer holds for a second: the route is public.
        let mut probe = self.0.probe.lock().await;
        if probe.good_at.is_some_and(|at| at.elapsed() < READY_HOLDS) {
            return Ok(());
        }
        probe.good_at = None;
        // What one found that nobody waited for was true then.
        drop(probe.running.take_if(|running| running.is_finished()));
        // It goes on when who asked has given up: while no standby answers, each new one would
        // leave another backend behind that waits in its COMMIT.
        let running = probe.running.get_or_insert_with(|| {
            let store = self.0.store.clone();
            tokio::spawn(async move {
                tokio::time::timeout(PROBE_TIME, store.check_writable())
                    .await
                    .unwrap_or_else(|_| {
                        Err(StoreError::Unavailable(
                            "the test write was not answered".into(),
                        ))
                    })
            })
        });
        let answered = running.await;
        probe.running = None;
        answered.map_err(|error| StoreError::Unavailable(error.to_string()))??;
        probe.good_at = Some(Instant::now());
        Ok(())
    }
}

/// PostgreSQL text cannot hold NUL; these texts only inform, the bytes are kept in the body.
fn without_nul(text: &mut Option<String>) {
    if let Some(text) = text
        && text.contains('\0')
    {
        *text = text.replace('\0', "\u{fffd}");
    }
}

/// What the relay of emitted events needs of the current set.
fn internals(active: &Active) -> Internals {
    let internal = |(id, source): &(i32, Arc<Source>)| {
        (source.provider.name() == internal::NAME).then(|| (*id, Arc::clone(source)))
    };
    Internals {
        sources: active.sources.values().filter_map(internal).collect(),
        routes: active.routes.clone(),
    }
}

/// Registers the names and finds out what is needed of each handler.
async fn activate(
    store: &Store,
    http: &reqwest::Client,
    mut sources: Vec<Source>,
    handlers: Vec<HandlerSpec>,
) -> Result<Active, EngineError> {
    let signer: Arc<dyn Provider> =
        provider::build("standard-webhooks", &provider::Options::default())?;
    if let Some((handler, problem)) = rules::of_all(&handlers, signer.as_ref()) {
        return Err(EngineError::Handler { handler, problem });
    }
    let (made, operations) = operations::of(&handlers, sources.len());
    if let Some(taken) = made
        .iter()
        .find(|one| sources.iter().any(|s| s.name == one.name))
    {
        return Err(EngineError::Handler {
            handler: taken.name.clone(),
            problem: SpecError::NameTaken,
        });
    }
    sources.extend(made);
    // Side by side: however many of their hosts do not answer, the start waits for one time-out.
    let reached = join_all(handlers.iter().map(reach)).await;
    let mut found = Vec::with_capacity(handlers.len());
    for (spec, reached) in handlers.iter().zip(reached) {
        found.push(match reached? {
            Some(outside) => (None, Some(outside)),
            None => look_up(store, http, &signer, spec).await?,
        });
    }
    let source_names: Vec<Name<'_>> = sources
        .iter()
        .map(|s| Name {
            now: &s.name,
            was: s.was.as_deref(),
            recipe: s.provider.recipe(),
            on_unknown: None,
        })
        .collect();
    let handler_names: Vec<Name<'_>> = handlers
        .iter()
        .map(|h| Name {
            now: &h.name,
            was: h.was.as_deref(),
            recipe: h
                .lane
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
            on_unknown: Some(h.kind.on_unknown().as_str()),
        })
        .collect();
    let (source_ids, handler_ids, rules) = store
        .register(&source_names, &handler_names, &operations)
        .await?;
    operations::with_rules(&mut sources, &operations, rules);
    let serving = operations.iter().filter_map(|operation| {
        let (source, handler) = (
            source_ids.get(operation.source)?,
            handler_ids.get(operation.handler)?,
        );
        Some((source.id, handler.id))
    });
    let serving = serving.collect();

    let routes = Routes::new(handlers.iter().zip(&handler_ids).map(|(spec, row)| {
        let taking = Taking {
            events: spec.events.clone(),
            priorities: spec.priorities.clone(),
            lane: spec.lane.clone(),
        };
        (row.id, taking)
    }));
    let sources: HashMap<String, (i32, Arc<Source>)> = sources
        .into_iter()
        .zip(&source_ids)
        .map(|(source, row)| (source.name.clone(), (row.id, Arc::new(source))))
        .collect();
    let handlers = handlers
        .into_iter()
        .zip(handler_ids)
        .zip(found)
        .map(|((spec, row), (sql, outside))| {
            let handler = ActiveHandler {
                id: row.id,
                first_name: row.first_name,
                spec,
                sql,
                outside,
            };
            (handler.id, Arc::new(handler))
        })
        .collect();
    let active = Active {
        sources,
        handlers,
        routes,
        operations: serving,
    };
    count_from_zero(&active);
    Ok(active)
}

/// An alert on what grows sees the first one too.
fn count_from_zero(active: &Active) {
    telemetry::at_zero(
        active.sources.keys().map(String::as_str),
        active.handlers.values().map(|h| h.spec.name.as_str()),
    );
    for handler in active.operations.values() {
        if let Some(handler) = active.handlers.get(handler) {
            telemetry::operation_at_zero(&handler.spec.name);
        }
    }
}

/// The database of a `sql` handler that has its own: looked at where it answers within [`OTHER_READY`].
async fn reach(spec: &HandlerSpec) -> Result<Option<Outside>, EngineError> {
    let HandlerKind::SqlElsewhere { call, database } = &spec.kind else {
        return Ok(None);
    };
    let connections = usize::from(spec.concurrency);
    let other = OtherDatabase::new(database, &spec.name, call, connections)?;
    match tokio::time::timeout(OTHER_READY, other.ready()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) if !is_connection_error(&error) => return Err(error.into()),
        // Receiving does not wait for it; its deliveries do.
        Ok(Err(error)) => {
            tracing::error!(handler = %spec.name, error = %error, "a handler's database is not reached, its deliveries wait");
        }
        Err(_) => {
            tracing::error!(handler = %spec.name, "a handler's database does not answer, its deliveries wait");
        }
    }
    Ok(Some(Outside::Sql(Arc::new(other))))
}

/// What is found out about a handler before it is registered: its function, or what makes its calls.
async fn look_up(
    store: &Store,
    http: &reqwest::Client,
    signer: &Arc<dyn Provider>,
    spec: &HandlerSpec,
) -> Result<(Option<SqlFunction>, Option<Outside>), EngineError> {
    Ok(match &spec.kind {
        HandlerKind::Sql { call } => (Some(store.sql_function(&spec.name, call).await?), None),
        HandlerKind::SqlElsewhere { .. } | HandlerKind::Function(_) => (None, None),
        HandlerKind::Http(target) => {
            let calls = Calls::new(
                http.clone(),
                target.clone(),
                Arc::clone(signer),
                spec.operation
                    .as_ref()
                    .map(|operation| operation.headers.clone()),
            );
            (None, Some(Outside::Http(Arc::new(calls))))
        }
        HandlerKind::External(code) => (None, Some(Outside::Code(Arc::clone(code)))),
    })
}
