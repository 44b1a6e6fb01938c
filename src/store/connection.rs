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
use tokio_postgres::{AsyncMessage, Client, Row, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::StoreError;
use super::names::Names;
use super::settings::{Sessions, Settings};
use super::signal::Wake;
use super::statement::{Prepared, parameter_types};
use super::transaction::{
    AS_AT_CONNECT, BY_INDEX, DURABLE, Params, is_connection_error, is_stale_session,
};

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

/// `DISCARD ALL` without `DEALLOCATE ALL` and `DISCARD PLANS`: what is prepared stays.
const FORGET: &str = "\
    RESET ALL; CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ROLE; UNLISTEN *; \
    SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES";

/// One connection to PostgreSQL.
#[derive(Debug)]
pub(crate) struct Connection {
    client: Client,
    sessions: Sessions,
    statements: Mutex<HashMap<&'static str, Prepared>>,
    warnings: Arc<AtomicU64>,
    /// Set from BEGIN until COMMIT or ROLLBACK has been answered, and after errors that mean the
    /// server is no longer the one we want. A connection that comes back unclean is dropped.
    unclean: AtomicBool,
    /// What begins each of our transactions, so that its session is as ours must be.
    own_session: &'static str,
    after_handlers: String,
    /// Whether the server's platform can tell, while a statement runs, that its client has gone.
    looks_for_client: bool,
}

impl Connection {
    /// A statement made ready to be sent, once per connection.
    pub(super) async fn prepared(&self, sql: &'static str) -> Result<Prepared, StoreError> {
        let known = self
            .statements
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(sql)
            .cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = match self.sessions {
            Sessions::Own => Prepared::Named(self.client.prepare(sql).await?),
            Sessions::Lent => {
                // Inside a transaction the session is ours already, or a handler's.
                let inside = self.unclean.load(Ordering::Acquire);
                let before = if inside { "" } else { self.own_session };
                Prepared::Unnamed(sql, parameter_types(&self.client, before, sql).await?)
            }
        };
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

    /// What begins each of our transactions, so that its session is as ours must be.
    pub(super) fn own_session(&self) -> &'static str {
        self.own_session
    }

    /// What takes back everything that a handler can leave in a session except for prepared
    /// statements, which are ours. Those of a name of its own are the handler's affair.
    pub(super) fn after_handlers(&self) -> &str {
        &self.after_handlers
    }

    pub(super) fn looks_for_client(&self) -> bool {
        self.looks_for_client
    }

    /// Runs a statement that returns rows and is a transaction of its own.
    pub(super) async fn query_alone(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepared(sql).await?;
        self.alone("", statement.query(&self.client, params)).await
    }

    /// Runs a statement that is a transaction of its own; returns the number of rows it changed.
    pub(super) async fn execute_alone(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<u64, StoreError> {
        let statement = self.prepared(sql).await?;
        self.alone("", statement.execute(&self.client, params))
            .await
    }

    /// As [`Connection::query_alone`], with a plan by index as
    /// [`Transaction`](super::transaction::Transaction) has it.
    pub(super) async fn query_by_index(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepared(sql).await?;
        self.alone(BY_INDEX, statement.query(&self.client, params))
            .await
    }

    /// Runs one statement as a transaction with settings of its own.
    async fn alone<T>(
        &self,
        settings: &str,
        run: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        if settings.is_empty() && self.own_session.is_empty() {
            return self.checked(run.await);
        }
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; {}{settings}",
            self.own_session
        );
        self.set_unclean(true);
        // Sent back to back: one round trip.
        let (begun, done, ended) = tokio::join!(
            biased;
            self.client.batch_execute(&begin),
            run,
            self.client.batch_execute("COMMIT"),
        );
        self.set_unclean(ended.is_err());
        // The first error is the cause, the others follow from it.
        self.checked(begun)?;
        let done = self.checked(done)?;
        self.checked(ended)?;
        Ok(done)
    }

    /// The result of a statement outside a transaction. After an error that means the wrong server
    /// (a primary turned read-only answers reads and fails every write) or a session that lost our
    /// prepared statements, the connection does not go back to its pool.
    fn checked<T>(&self, result: Result<T, tokio_postgres::Error>) -> Result<T, StoreError> {
        result.map_err(StoreError::from).inspect_err(|error| {
            if is_connection_error(error) || is_stale_session(error) {
                self.set_unclean(true);
            }
        })
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
    on_notify: Option<Arc<Wake>>,
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
                        notify.heard(heard.channel());
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            }
        }
        if let Some(notify) = &on_notify {
            notify.switched();
        }
    });
    // One message: a session that is lent by the transaction is ours until it is answered.
    let keepalives = match settings.sessions {
        Sessions::Own => KEEPALIVES,
        Sessions::Lent => "",
    };
    let answer = client
        .simple_query(&format!(
            "{keepalives}; SELECT current_setting('synchronous_commit'), version() LIKE '%linux%', pg_backend_pid()"
        ))
        .await?;
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let column = |index| row.and_then(|row| row.get(index)).unwrap_or_default();
    backend.store(column(2).parse().unwrap_or_default(), Ordering::Release);
    let own_session = match (settings.sessions, column(0)) {
        (Sessions::Lent, _) => AS_AT_CONNECT,
        (Sessions::Own, "off" | "local" | "remote_write") => DURABLE,
        (Sessions::Own, _) => "",
    };
    // Behind a pooler, in its session mode too, somebody else began the session.
    let again = format!(
        "SET client_encoding = 'UTF8'; SET application_name = '{}'; {keepalives}",
        settings.application_name().replace('\'', "''")
    );
    let looks_for_client = column(1) == "t";
    Ok(Connection {
        client,
        sessions: settings.sessions,
        statements: Mutex::default(),
        warnings,
        unclean: AtomicBool::new(false),
        own_session,
        after_handlers: format!("{FORGET}; {again}"),
        looks_for_client,
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
