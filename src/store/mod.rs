//! Everything that speaks to PostgreSQL, and the only place with SQL.
//!
//! One statement per file in `sql/`, whose head is its contract; one function runs it. Functions
//! take a connection or a transaction and return domain types; rows stay inside. No transaction
//! lives across a network call.

mod again;
pub(crate) mod audit;
pub mod bulk;
pub(crate) mod cap;
pub(crate) mod connection;
pub(crate) mod delivery;
pub(crate) mod effects;
mod error;
pub mod flow;
pub(crate) mod handling;
pub(crate) mod health;
pub(crate) mod ingest;
pub(crate) mod keeper;
pub(crate) mod lanes;
pub(crate) mod latest;
pub mod ledger;
pub(crate) mod locked;
pub mod migrate;
mod missing;
mod names;
pub(crate) mod operation;
pub(crate) mod operation_gauges;
pub(crate) mod outbox;
mod pooling;
pub mod query;
pub(crate) mod quota;
pub(crate) mod registry;
pub(crate) mod rejected;
mod replay;
mod resolve;
pub(crate) mod response;
pub mod sample;
mod settings;
mod signal;
mod statement;
mod tls;
mod token;
pub(crate) mod transaction;
pub(crate) mod uncertain;
pub mod verify;
mod work;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};

pub use error::StoreError;
pub use missing::{MissingOrder, MissingPage};
pub use operation::OperationFilter;
pub use replay::ReplayRequest;
pub use resolve::{Resolution, ResolveRequest};
pub use settings::Settings;
pub use signal::OperationEnd;
pub(crate) use signal::{Signal, Wake};
pub(crate) use token::Found as FoundToken;
pub use token::{MadeToken, NewToken, TokenInfo};
pub use work::{Emit, Work};

use connection::{Lent, Pool};
use lanes::Pending;
use names::Names;

/// Connections that ingest may use: two batches at most are in flight, one is spare.
const INGEST_CONNECTIONS: usize = 3;
/// Connections for replays, registry and house-keeping.
const ADMIN_CONNECTIONS: usize = 4;
/// Connections for what clients of operations wait for.
const WAITING_CONNECTIONS: usize = 2;
/// Connections for what people ask.
const QUERY_CONNECTIONS: usize = 3;

/// The database, as everything above it sees it. Cheap to clone; connects lazily.
#[derive(Debug, Clone)]
pub struct Store(Arc<Pools>);

#[derive(Debug)]
struct Pools {
    settings: Settings,
    runtime: Handle,
    /// What connections of ingest and dispatch are checked against.
    names: Arc<Names>,
    /// Lanes to look at after a commit.
    lanes: Pending,
    /// Set when it was looked.
    pooling_fits: OnceCell<()>,
    /// One count of a bulk replay at a time.
    count: Semaphore,
    /// Apart, so that handlers and queries never make an acknowledgement wait.
    ingest: Pool,
    dispatch: Pool,
    admin: Pool,
    /// Apart from house-keeping: what people ask may be slow.
    queries: Pool,
    /// Apart from both: lists never keep those waiting who ask how their operation ended.
    waiting: Pool,
}

impl Store {
    /// Pools for ingest, dispatch and everything else. `dispatch_connections` is the most that
    /// handlers use at once; one more is for claims.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] outside a Tokio runtime, which drives the connections;
    /// [`StoreError::Tls`] when `sslmode` asks for roots that cannot be read.
    pub fn new(settings: Settings, dispatch_connections: usize) -> Result<Self, StoreError> {
        let tls = tls::connector(&settings)?;
        let runtime =
            Handle::try_current().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let names = Arc::new(Names::default());
        let pool = |size, names| Pool::new(&settings, &tls, &runtime, names, size);
        Ok(Self(Arc::new(Pools {
            ingest: pool(INGEST_CONNECTIONS, Some(&names))?,
            dispatch: pool(dispatch_connections + 1, Some(&names))?,
            admin: pool(ADMIN_CONNECTIONS, None)?,
            queries: pool(QUERY_CONNECTIONS, None)?,
            waiting: pool(WAITING_CONNECTIONS, None)?,
            names,
            lanes: Pending::default(),
            pooling_fits: OnceCell::new(),
            count: Semaphore::new(1),
            settings,
            runtime,
        })))
    }

    pub(crate) async fn ingest(&self) -> Result<Lent, StoreError> {
        self.0.ingest.get().await
    }

    pub(crate) async fn dispatch(&self) -> Result<Lent, StoreError> {
        self.0.dispatch.get().await
    }

    pub(crate) async fn queries(&self) -> Result<Lent, StoreError> {
        self.0.queries.get().await
    }

    pub(crate) async fn waiting(&self) -> Result<Lent, StoreError> {
        self.0.waiting.get().await
    }

    pub(crate) async fn admin(&self) -> Result<Lent, StoreError> {
        self.0.admin.get().await
    }
}
