//! Connections and pools. The connection loop is our own, so that notices are seen: a warning
//! that arrives while a COMMIT is in flight means "not durable".

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, PoolError, RecycleError, RecycleResult, TimeoutType};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::StoreError;
use super::names::Names;
use super::settings::Settings;
use super::transaction::{Params, is_connection_error, is_stale_session};

/// Longest wait for a connection that is in use.
const CONNECTION_WAIT: Duration = Duration::from_secs(1);
/// Longest time to make one: TCP, TLS and authentication over a long distance. Senders do not wait
/// for it, see `ingest::IngestConfig::wait`.
const CONNECTION_MADE: Duration = Duration::from_secs(10);

/// The server looks after a silent client within half a minute. Its time-outs do not run between
/// the messages of one statement, or in a session that holds a lock outside of a transaction: a
/// node whose host vanished there would keep its locks for the operating system's two hours.
pub(super) const KEEPALIVES: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; \
     SET tcp_user_timeout = 30000";

/// One connection to PostgreSQL.
#[derive(Debug)]
pub(crate) struct Connection {
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
    warnings: Arc<AtomicU64>,
    /// Set from BEGIN until COMMIT or ROLLBACK has been answered, and after errors that mean the
    /// server is no longer the one we want. A connection that comes back unclean is dropped.
    unclean: AtomicBool,
    /// Whether the role or database lowers `synchronous_commit`.
    lowered_durability: bool,
    /// Whether the server's platform can tell, while a statement runs, that its client has gone.
    looks_for_client: bool,
}

impl Connection {
    /// The prepared form of a statement, prepared once per connection.
    pub(super) async fn prepared(&self, sql: &'static str) -> Result<Statement, StoreError> {
        let known = self
            .statements
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(sql)
            .cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.statements
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(sql, statement.clone());
        Ok(statement)
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::Acquire)
    }

    pub(super) fn lowered_durability(&self) -> bool {
        self.lowered_durability
    }

    pub(super) fn looks_for_client(&self) -> bool {
        self.looks_for_client
    }

    /// The result of a statement outside a transaction. After an error that means the wrong server
    /// (a primary turned read-only answers reads and fails every write) or a session that lost our
    /// prepared statements, the connection does not go back to its pool.
    pub(super) fn checked<T>(
        &self,
        result: Result<T, tokio_postgres::Error>,
    ) -> Result<T, StoreError> {
        result.map_err(StoreError::from).inspect_err(|error| {
            if is_connection_error(error) || is_stale_session(error) {
                self.set_unclean(true);
            }
        })
    }

    /// Runs a statement outside a transaction with a plan by index, as
    /// [`Transaction`](super::transaction::Transaction) does inside one.
    pub(super) async fn query_by_index(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepared(sql).await?;
        // Sent back to back: one round trip.
        let (off, rows, reset) = tokio::join!(
            biased;
            self.client.batch_execute("SET enable_seqscan = off"),
            self.client.query(&statement, params),
            self.client.batch_execute("RESET enable_seqscan"),
        );
        if reset.is_err() {
            self.set_unclean(true);
        }
        let rows = self.checked(rows)?;
        self.checked(off)?;
        Ok(rows)
    }

    pub(super) fn set_unclean(&self, unclean: bool) {
        self.unclean.store(unclean, Ordering::Release);
    }

    /// Whether the connection can no longer be used.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

/// Opens one connection. `on_notify` is woken by every notification of others and when the
/// connection ends.
pub(super) async fn connect(
    settings: &Settings,
    tls: &MakeRustlsConnect,
    on_notify: Option<Arc<Notify>>,
    runtime: &Handle,
) -> Result<Connection, StoreError> {
    let (client, mut connection) = settings
        .config
        .connect(tls.clone())
        .await
        .map_err(|error| StoreError::Unavailable(describe_connect(&error)))?;
    let warnings = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&warnings);
    let backend = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&backend);
    // On the store's own runtime: a web worker's would take the connection down with it.
    runtime.spawn(async move {
        loop {
            match poll_fn(|cx| connection.poll_message(cx)).await {
                Some(Ok(AsyncMessage::Notice(notice))) => {
                    // The severity in English whatever `lc_messages` says.
                    let severe = notice
                        .parsed_severity()
                        .is_none_or(|s| matches!(s, tokio_postgres::error::Severity::Warning));
                    if severe {
                        seen.fetch_add(1, Ordering::AcqRel);
                        tracing::warn!(
                            sqlstate = notice.code().code(),
                            "PostgreSQL sent a warning"
                        );
                    }
                }
                Some(Ok(AsyncMessage::Notification(heard))) => {
                    // Our own come back too; whoever sent them is awake.
                    if let Some(notify) = &on_notify
                        && heard.process_id() != own.load(Ordering::Acquire)
                    {
                        notify.notify_one();
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            }
        }
        if let Some(notify) = &on_notify {
            notify.notify_one();
        }
    });
    // Sent back to back: one round trip.
    let (kept, row) = tokio::join!(
        biased;
        client.batch_execute(KEEPALIVES),
        client.query_one(
            "SELECT current_setting('synchronous_commit'), version() LIKE '%linux%', pg_backend_pid()",
            &[],
        ),
    );
    kept?;
    let row = row?;
    backend.store(row.get(2), Ordering::Release);
    let lowered_durability = matches!(row.get::<_, &str>(0), "off" | "local" | "remote_write");
    Ok(Connection {
        client,
        statements: Mutex::default(),
        warnings,
        unclean: AtomicBool::new(false),
        lowered_durability,
        looks_for_client: row.get(1),
    })
}

/// The reason without the URL, which may hold a password.
pub(super) fn describe_connect(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", db.message(), db.code().code());
    }
    super::error::chain(error)
}

/// Makes and checks pooled connections.
pub(crate) struct Manager {
    settings: Settings,
    tls: MakeRustlsConnect,
    runtime: Handle,
    /// What a new connection must know before it is lent.
    names: Option<Arc<Names>>,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").finish_non_exhaustive()
    }
}

impl managed::Manager for Manager {
    type Type = Connection;
    type Error = StoreError;

    async fn create(&self) -> Result<Connection, StoreError> {
        // Opened on the store's runtime too: a socket belongs to the reactor it was opened on.
        let (settings, tls, runtime) = (
            self.settings.clone(),
            self.tls.clone(),
            self.runtime.clone(),
        );
        let opened = self
            .runtime
            .spawn(async move { connect(&settings, &tls, None, &runtime).await });
        let connection = opened
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))??;
        if let Some(names) = &self.names {
            names.prove(&connection).await?;
        }
        Ok(connection)
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<StoreError> {
        if connection.client.is_closed() || connection.unclean.load(Ordering::Acquire) {
            return Err(RecycleError::message(
                "closed, inside a transaction, or no longer writable",
            ));
        }
        Ok(())
    }
}

/// A pool whose waits are bounded.
#[derive(Debug, Clone)]
pub(crate) struct Pool(managed::Pool<Manager>);

/// A connection on loan. One that is handed back inside a transaction is closed at once: the pool
/// itself would look at it only when it is lent again, and its row locks would stand until then.
#[derive(Debug)]
pub(crate) struct Lent(Option<managed::Object<Manager>>);

impl std::ops::Deref for Lent {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match &self.0 {
            Some(object) => object,
            // Only `drop` takes it out.
            None => unreachable!("a lent connection is there until it is dropped"),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(object) = self.0.take()
            && (object.is_closed() || object.unclean.load(Ordering::Acquire))
        {
            drop(managed::Object::take(object));
        }
    }
}

impl Pool {
    pub(super) fn new(
        settings: &Settings,
        tls: &MakeRustlsConnect,
        runtime: &Handle,
        names: Option<&Arc<Names>>,
        size: usize,
    ) -> Result<Self, StoreError> {
        let manager = Manager {
            settings: settings.clone(),
            tls: tls.clone(),
            runtime: runtime.clone(),
            names: names.cloned(),
        };
        managed::Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECTION_WAIT))
            .create_timeout(Some(CONNECTION_MADE))
            .recycle_timeout(Some(CONNECTION_WAIT))
            .build()
            .map(Self)
            .map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    /// A connection within a second, or [`StoreError::Unavailable`].
    pub(crate) async fn get(&self) -> Result<Lent, StoreError> {
        self.0
            .get()
            .await
            .map(|object| Lent(Some(object)))
            .map_err(|error| match error {
                PoolError::Backend(error) => error,
                PoolError::Timeout(TimeoutType::Wait) => {
                    StoreError::Unavailable("every pooled connection is busy".into())
                }
                PoolError::Timeout(_) => {
                    StoreError::Unavailable("the database did not answer in time".into())
                }
                other => StoreError::Unavailable(other.to_string()),
            })
    }
}
