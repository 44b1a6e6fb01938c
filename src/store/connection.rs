//! Connections and pools. The connection loop is our own, so that notices are seen: a warning
//! that arrives while a COMMIT is in flight means "not durable".

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, PoolError, RecycleError, RecycleResult, TimeoutType};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, Client, Config, Row, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::StoreError;
use super::names::Names;
use super::settings::{Sessions, Settings, address};
use super::signal::Wake;
use super::statement::{Prepared, parameter_types};
use super::transaction::{
    BY_INDEX, Limits, Mode, Params, begin, is_connection_error, is_stale_session, session, set,
};

/// Longest wait for a connection that is in use.
const CONNECTION_WAIT: Duration = Duration::from_secs(1);
/// Longest time to make one, for whatever the URL says of each server. Senders do not wait for it,
/// see `ingest::IngestConfig::wait`.
const CONNECTION_MADE: Duration = Duration::from_secs(10);

/// The server looks after a silent client within half a minute. Its time-outs do not run between
/// the messages of one statement, or in a session that holds a lock outside of a transaction: a
/// node whose host vanished there would keep its locks for the operating system's two hours.
const KEEPALIVES: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; \
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
    /// How many names its server was asked for; see [`Names`].
    proved: AtomicUsize,
    after_handlers: String,
    /// Whether the server's platform can tell, while a statement runs, that its client has gone.
    looks_for_client: bool,
}

impl Connection {
    /// A statement made ready to be sent, once per connection; outside of a transaction.
    pub(super) async fn prepared(&self, sql: &'static str) -> Result<Prepared, StoreError> {
        self.prepared_after(session(self.sessions), sql).await
    }

    /// The same inside a transaction: the session is ours already, or a handler's.
    pub(super) async fn prepared_within(&self, sql: &'static str) -> Result<Prepared, StoreError> {
        self.prepared_after("", sql).await
    }

    async fn prepared_after(
        &self,
        before: &str,
        sql: &'static str,
    ) -> Result<Prepared, StoreError> {
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

    pub(super) fn sessions(&self) -> Sessions {
        self.sessions
    }

    /// What takes back everything that a handler can leave in a session except for prepared
    /// statements, which are ours. Those of a name of its own are the handler's affair.
    pub(super) fn after_handlers(&self) -> &str {
        &self.after_handlers
    }

    pub(super) fn looks_for_client(&self) -> bool {
        self.looks_for_client
    }

    /// How many names its server was asked for.
    pub(super) fn proved(&self) -> usize {
        self.proved.load(Ordering::Acquire)
    }

    pub(super) fn set_proved(&self, names: usize) {
        self.proved.store(names, Ordering::Release);
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

    /// Runs one statement as a transaction with settings of its own. In a session of its own and
    /// without settings it is sent as it is, and durability is as configured: what is written so (leases
    /// that are given back, samples) may be forgotten.
    async fn alone<T>(
        &self,
        settings: &str,
        run: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if settings.is_empty() && self.sessions == Sessions::Own {
            return self.checked(run.await);
        }
        let begin = begin(self.sessions, Mode::Work) + &set(Limits::ALONE) + settings;
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
        self.checked(begun.map_err(StoreError::from))?;
        let done = self.checked(done)?;
        self.checked(ended.map_err(StoreError::from))?;
        Ok(done)
    }

    /// The result of a statement outside a transaction. After an error that means the wrong server
    /// (a primary turned read-only answers reads and fails every write) or a session that lost our
    /// prepared statements, the connection does not go back to its pool.
    fn checked<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.inspect_err(|error| {
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

/// What a connection is for, beside statements.
#[derive(Debug, Clone, Default)]
pub(super) struct Purpose {
    /// What its server must know.
    pub(super) names: Option<Arc<Names>>,
    /// It listens to channels: woken by every notification of others and when it ends.
    pub(super) listens: Option<(&'static [&'static str], Arc<Wake>)>,
}

/// Opens a connection to the first server of the URL that is ready within its time. When a try is
/// given up, or the caller goes, nothing of it is left.
pub(super) async fn connect(
    settings: &Settings,
    tls: &MakeRustlsConnect,
    purpose: Purpose,
    runtime: &Handle,
) -> Result<Connection, StoreError> {
    // On the store's own runtime: a socket belongs to the reactor it was opened on, and a web
    // worker's would take the connection down with it.
    let mut opening = JoinSet::new();
    let (settings, tls, on) = (settings.clone(), tls.clone(), runtime.clone());
    opening.spawn_on(
        async move { first_ready(&settings, &tls, &purpose, &on).await },
        runtime,
    );
    match opening.join_next().await {
        Some(Ok(opened)) => opened,
        _ => Err(StoreError::Unavailable("the program is ending".into())),
    }
}

async fn first_ready(
    settings: &Settings,
    tls: &MakeRustlsConnect,
    purpose: &Purpose,
    runtime: &Handle,
) -> Result<Connection, StoreError> {
    let mut errors = Vec::new();
    for server in settings.servers() {
        let time = settings.server_time();
        let opened = tokio::time::timeout(time, open(server, settings, tls, purpose, runtime));
        let error = match opened.await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => error,
            Err(_) => StoreError::Unavailable(format!("no answer within {time:?}")),
        };
        errors.push((address(server), error));
    }
    if errors.len() == 1
        && let Some((_, error)) = errors.pop()
    {
        return Err(error);
    }
    let each = errors.into_iter().map(|(server, error)| match error {
        StoreError::Unavailable(reason) => format!("{server}: {reason}"),
        other => format!("{server}: {other}"),
    });
    Err(StoreError::Unavailable(each.collect::<Vec<_>>().join("; ")))
}

/// Connects to one server and makes the connection ready.
async fn open(
    server: &Config,
    settings: &Settings,
    tls: &MakeRustlsConnect,
    purpose: &Purpose,
    runtime: &Handle,
) -> Result<Connection, StoreError> {
    let (client, mut connection) = server
        .connect(tls.clone())
        .await
        .map_err(|error| StoreError::Unreachable(settings.key, describe_connect(&error)))?;
    let warnings = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&warnings);
    let backend = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&backend);
    let wake = purpose.listens.as_ref().map(|(_, wake)| Arc::clone(wake));
    let mut driver = Box::pin(async move {
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
                    if let Some(wake) = &wake
                        && heard.process_id() != own.load(Ordering::Acquire)
                    {
                        wake.heard(heard.channel());
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            }
        }
        if let Some(wake) = &wake {
            wake.switched();
        }
    });
    let mut ready = pin!(make_ready(client, settings, purpose, warnings, &backend));
    // Driven from here until it is ready: a try that is given up takes its socket with it.
    let connection = tokio::select! {
        connection = &mut ready => connection?,
        () = &mut driver => {
            ready.await?;
            return Err(StoreError::Unavailable("the server closed the connection".into()));
        }
    };
    runtime.spawn(driver);
    Ok(connection)
}

/// The statements that come first: the session is set up, the server takes writes and knows what it
/// must.
async fn make_ready(
    client: Client,
    settings: &Settings,
    purpose: &Purpose,
    warnings: Arc<AtomicU64>,
    backend: &AtomicI32,
) -> Result<Connection, StoreError> {
    const LOOK: &str = "SELECT current_setting('transaction_read_only'), version() LIKE '%linux%', pg_backend_pid()";
    let keepalives = match settings.sessions {
        Sessions::Own => KEEPALIVES,
        Sessions::Lent => "",
    };
    let mode = if settings.writes {
        Mode::Work
    } else {
        Mode::Snapshot
    };
    let begin = begin(settings.sessions, mode);
    let answer = client
        .simple_query(&format!("{keepalives}; {begin}{LOOK}; COMMIT"))
        .await?;
    let row = answer.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let column = |index| row.and_then(|row| row.get(index)).unwrap_or_default();
    // After a failover the old primary may still answer reads.
    if settings.writes && column(0) != "off" {
        return Err(StoreError::Unavailable(
            "the server does not take writes".into(),
        ));
    }
    backend.store(column(2).parse().unwrap_or_default(), Ordering::Release);
    // Behind a pooler, in its session mode too, somebody else began the session.
    let again = format!(
        "SET client_encoding = 'UTF8'; SET application_name = '{}'; {keepalives}",
        settings.application_name().replace('\'', "''")
    );
    let looks_for_client = column(1) == "t";
    let connection = Connection {
        client,
        sessions: settings.sessions,
        statements: Mutex::default(),
        warnings,
        unclean: AtomicBool::new(false),
        proved: AtomicUsize::new(0),
        after_handlers: format!("{FORGET}; {again}"),
        looks_for_client,
    };
    if let Some(names) = &purpose.names {
        names.prove(&connection).await?;
    }
    if let Some((channels, _)) = &purpose.listens {
        let listen = format!("LISTEN {}", channels.join("; LISTEN "));
        connection.client.batch_execute(&listen).await?;
    }
    Ok(connection)
}

/// The reason without the URL, which may hold a password.
fn describe_connect(error: &tokio_postgres::Error) -> String {
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
    /// What the server must know before a connection is lent.
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
        let purpose = Purpose {
            names: self.names.clone(),
            ..Purpose::default()
        };
        connect(&self.settings, &self.tls, purpose, &self.runtime).await
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<StoreError> {
        if connection.client.is_closed() || connection.unclean.load(Ordering::Acquire) {
            return Err(RecycleError::message(
                "closed, inside a transaction, or no longer writable",
            ));
        }
        if let Some(names) = &self.names
            && names.count() != connection.proved()
        {
            names
                .prove(connection)
                .await
                .map_err(RecycleError::Backend)?;
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
