//! Short transactions with a durability guard.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::StoreError;
use super::connection::Connection;
use super::error::is_statement_of_other_session;
use super::settings::Sessions;

/// Parameters of a statement.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Our statements look rows up by key. A plan that was made while a table was nearly empty would
/// read the whole of it until the next ANALYZE, in a burst after a quiet time a hundred thousand
/// rows per batch; this makes the plan independent of what was counted when.
pub(super) const BY_INDEX: &str = "SET LOCAL enable_seqscan = off";

/// Handlers get the plans that the operator's settings give.
pub(super) const AS_CONFIGURED: &str = "SET LOCAL enable_seqscan TO DEFAULT";

/// Who lowers durability, whether before we connected or since, does not lower ours. An operator's
/// stronger setting stays.
const DURABLE: &str = "\
    SELECT set_config('synchronous_commit', 'on', true) \
     WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write'); ";

/// For a session that was another's before: no role and no objects under the same names are taken
/// over, and durability and writability are as configured.
const AS_AT_CONNECT: &str = "\
    SET LOCAL role TO DEFAULT; SET LOCAL search_path TO DEFAULT; SET LOCAL synchronous_commit TO DEFAULT; \
    SET LOCAL default_transaction_read_only TO DEFAULT; ";

/// Whoever had the session before does not make our transaction read-only, the operator does.
const WRITABLE_AS_CONFIGURED: &str = "\
    SELECT set_config('transaction_read_only', 'on', true) \
     WHERE current_setting('default_transaction_read_only') = 'on'; ";

/// What a transaction is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Anything, at READ COMMITTED.
    Work,
    /// Reading only: every statement sees what was committed at the first one.
    Snapshot,
}

/// BEGIN, and what makes the session ours for its length. With what follows it is one message.
pub(super) fn begin(sessions: Sessions, mode: Mode) -> String {
    match (sessions, mode) {
        (Sessions::Own, Mode::Work) => {
            format!("BEGIN ISOLATION LEVEL READ COMMITTED; {DURABLE}")
        }
        (Sessions::Lent, Mode::Work) => format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {AS_AT_CONNECT}{WRITABLE_AS_CONFIGURED}{DURABLE}"
        ),
        (Sessions::Own, Mode::Snapshot) => {
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; ".to_owned()
        }
        (Sessions::Lent, Mode::Snapshot) => {
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {AS_AT_CONNECT}")
        }
    }
}

/// What comes before a statement outside of a transaction, in the same message.
pub(super) fn session(sessions: Sessions) -> &'static str {
    match sessions {
        Sessions::Own => "",
        Sessions::Lent => AS_AT_CONNECT,
    }
}

/// Server-side limits of one transaction, set with `SET LOCAL`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Longest statement.
    pub(crate) statement: Duration,
    /// Longest pause between statements.
    pub(crate) idle: Duration,
    /// Longest wait for a lock.
    pub(crate) lock: Duration,
}

impl Limits {
    /// For everything that is not a handler.
    pub(crate) const SHORT: Self = Self {
        statement: Duration::from_secs(5),
        idle: Duration::from_secs(5),
        lock: Duration::from_millis(500),
    };

    /// For one statement in a transaction of its own; what people ask may take a while.
    pub(super) const ALONE: Self = Self {
        statement: Duration::from_secs(30),
        idle: Duration::from_secs(5),
        lock: Duration::from_secs(5),
    };
}

/// The settings of limits.
pub(super) fn set(limits: Limits) -> String {
    format!(
        "SET LOCAL statement_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}; \
         SET LOCAL lock_timeout = {}; ",
        limits.statement.as_millis(),
        limits.idle.as_millis(),
        limits.lock.as_millis(),
    )
}

/// How a transaction's end leaves its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Session {
    Clean,
    /// With something of a handler's: of no use to anybody else.
    Dirty,
}

/// A transaction that is over only when COMMIT or ROLLBACK was answered: a connection that comes
/// back to its pool before that is dropped.
#[derive(Debug)]
pub(crate) struct Transaction<'c> {
    connection: &'c Connection,
    /// Handlers' statements run in it, which may leave something in the session.
    handlers: bool,
}

impl<'c> Transaction<'c> {
    /// BEGIN at READ COMMITTED, whatever the database's default is, with plans by index: see
    /// [`BY_INDEX`].
    pub(crate) async fn begin(
        connection: &'c Connection,
        limits: Limits,
    ) -> Result<Self, StoreError> {
        Self::limited(Mode::Work, connection, limits).await
    }

    /// BEGIN for reading only: every statement sees what was committed at the first one.
    pub(crate) async fn snapshot(
        connection: &'c Connection,
        limits: Limits,
    ) -> Result<Self, StoreError> {
        Self::limited(Mode::Snapshot, connection, limits).await
    }

    async fn limited(
        mode: Mode,
        connection: &'c Connection,
        limits: Limits,
    ) -> Result<Self, StoreError> {
        // The statement of a node that died would keep its rows locked until its time-out.
        let client_check =
            if connection.looks_for_client() && limits.statement > Limits::SHORT.statement {
                "SET LOCAL client_connection_check_interval = 2000;"
            } else {
                ""
            };
        let settings = format!("{}{BY_INDEX}; {client_check}", set(limits));
        Self::with(mode, connection, &settings).await
    }

    /// BEGIN with settings of the caller's own.
    pub(super) async fn with(
        mode: Mode,
        connection: &'c Connection,
        settings: &str,
    ) -> Result<Self, StoreError> {
        let text = begin(connection.sessions(), mode) + settings;
        connection.set_unclean(true);
        connection.client().batch_execute(&text).await?;
        Ok(Self {
            connection,
            handlers: false,
        })
    }

    /// Handlers' statements come next: with the end of the transaction the session is as it was.
    pub(crate) fn for_handlers(self) -> Self {
        Self {
            handlers: true,
            ..self
        }
    }

    /// COMMIT or ROLLBACK, and what else the end needs. One message: a session that is lent is still
    /// the same.
    async fn finish(&self, word: &str) -> Result<Session, StoreError> {
        let text = if self.handlers {
            format!("{word}; {}", self.connection.after_handlers())
        } else {
            word.to_owned()
        };
        let answers = self.connection.client().simple_query_raw(&text).await?;
        let mut answers = pin!(answers);
        // The first answer is the word's own; the transaction is over whatever comes behind it.
        answers.next().await.transpose()?;
        while let Some(answer) = answers.next().await {
            if let Err(error) = answer {
                let error = StoreError::from(error);
                tracing::warn!(error = %error, "a connection is closed: what a handler left there cannot be taken back");
                return Ok(Session::Dirty);
            }
        }
        Ok(Session::Clean)
    }

    pub(crate) fn connection(&self) -> &'c Connection {
        self.connection
    }

    /// Our own role, and plans for our own statements again, after a handler; see [`BY_INDEX`].
    pub(crate) async fn plan_by_index(&self) -> Result<(), StoreError> {
        Ok(self
            .connection
            .client()
            .batch_execute(&format!(
                "RESET SESSION AUTHORIZATION; RESET ROLE; {BY_INDEX}"
            ))
            .await?)
    }

    /// As at the beginning, whatever a handler has set since.
    pub(super) async fn durable(&self) -> Result<(), StoreError> {
        Ok(self.connection.client().batch_execute(DURABLE).await?)
    }

    /// The operator's plans, for a handler's statements; [`Transaction::for_handlers`] goes before.
    pub(crate) async fn plan_as_configured(&self) -> Result<(), StoreError> {
        Ok(self
            .connection
            .client()
            .batch_execute(AS_CONFIGURED)
            .await?)
    }

    /// Plans for statements that read whole days: by the operator's settings, but on one processor
    /// and not compiled, since others are at work; and made for the values at hand, since a plan
    /// for any value computes a window's bound anew for each row (2.4 s in place of 0.25 for a
    /// million keys).
    pub(super) async fn plan_for_many_rows(&self) -> Result<(), StoreError> {
        let text = format!(
            "{AS_CONFIGURED}; SET LOCAL jit = off; SET LOCAL max_parallel_workers_per_gather = 0; \
             SET LOCAL plan_cache_mode = force_custom_plan"
        );
        Ok(self.connection.client().batch_execute(&text).await?)
    }

    /// Runs a statement that returns rows.
    pub(super) async fn query(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.connection.prepared_within(sql).await?;
        statement.query(self.connection.client(), params).await
    }

    /// Runs a statement and returns the number of rows it changed.
    pub(super) async fn execute(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<u64, StoreError> {
        let statement = self.connection.prepared_within(sql).await?;
        statement.execute(self.connection.client(), params).await
    }

    /// Opens the savepoint of one handler.
    pub(crate) async fn savepoint(&self) -> Result<(), StoreError> {
        Ok(self
            .connection
            .client()
            .batch_execute("SAVEPOINT handler")
            .await?)
    }

    /// Checks deferred constraints now, so that one event's violation is its own.
    pub(crate) async fn check_constraints(&self) -> Result<(), tokio_postgres::Error> {
        self.connection
            .client()
            .batch_execute("SET CONSTRAINTS ALL IMMEDIATE")
            .await
    }

    /// Keeps what the handler wrote, not the role it took on: the next one in the batch has ours.
    pub(crate) async fn release(&self) -> Result<(), StoreError> {
        Ok(self
            .connection
            .client()
            .batch_execute("RELEASE SAVEPOINT handler; RESET SESSION AUTHORIZATION; RESET ROLE")
            .await?)
    }

    /// Undoes what the handler wrote.
    pub(crate) async fn back_to_savepoint(&self) -> Result<(), tokio_postgres::Error> {
        self.connection
            .client()
            .batch_execute("ROLLBACK TO SAVEPOINT handler; RELEASE SAVEPOINT handler")
            .await
    }

    /// COMMIT.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotDurable`] when a warning arrived while it was in flight: PostgreSQL
    /// answers a cancelled wait for its standbys with success and a warning. Any other error
    /// leaves the outcome unknown to the caller, who must read it back.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        let before = self.connection.warnings();
        let session = self.finish("COMMIT").await?;
        if self.connection.warnings() != before {
            // Left unclean: the session's state is not worth keeping.
            return Err(StoreError::NotDurable);
        }
        self.connection.set_unclean(session == Session::Dirty);
        Ok(())
    }

    /// COMMIT after success, ROLLBACK after an error: the one way a transaction's work ends.
    pub(crate) async fn end<T>(self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        match done {
            Ok(done) => {
                self.commit().await?;
                Ok(done)
            }
            Err(error) => {
                self.rollback(&error).await;
                Err(error)
            }
        }
    }

    /// ROLLBACK without an error.
    pub(crate) async fn undo(self) {
        if matches!(self.finish("ROLLBACK").await, Ok(Session::Clean)) {
            self.connection.set_unclean(false);
        }
    }

    /// ROLLBACK after an error; the connection stays usable unless the error says otherwise.
    pub(crate) async fn rollback(self, cause: &StoreError) {
        if !is_connection_error(cause) && !is_stale_session(cause) {
            self.undo().await;
        }
    }
}

/// Whether the error means that this connection leads to the wrong or to no server: class 08,
/// shutdowns (57P01 to 57P03), a primary turned read-only (25006), or a lost socket.
pub(crate) fn is_connection_error(error: &StoreError) -> bool {
    match error {
        StoreError::Statement(inner) => match inner.code() {
            None => true,
            Some(code) => {
                code.code().starts_with("08")
                    || [
                        SqlState::ADMIN_SHUTDOWN,
                        SqlState::CRASH_SHUTDOWN,
                        SqlState::CANNOT_CONNECT_NOW,
                        SqlState::READ_ONLY_SQL_TRANSACTION,
                    ]
                    .contains(code)
            }
        },
        StoreError::Unreachable(..) | StoreError::Unavailable(_) | StoreError::NotDurable => true,
        _ => false,
    }
}

/// Whether the server no longer has our prepared statements as they were: a handler ran
/// `DEALLOCATE ALL`, a pooler lent us another session, or an object that they read was changed
/// (0A000, "cached plan must not change result type"). Only a new connection helps.
pub(crate) fn is_stale_session(error: &StoreError) -> bool {
    error.sqlstate().is_some_and(|code| {
        is_statement_of_other_session(code) || *code == SqlState::FEATURE_NOT_SUPPORTED
    })
}

/// Whether the same transaction may simply be tried again: serialization failure, deadlock, lock
/// time-out.
pub(crate) fn is_transient(error: &StoreError) -> bool {
    error.sqlstate().is_some_and(|code| {
        code.code().starts_with("40") || [SqlState::LOCK_NOT_AVAILABLE].contains(code)
    })
}

/// "No partition of relation found for row" has the code of a check violation and no constraint.
pub(crate) fn is_missing_partition(error: &StoreError) -> bool {
    match error {
        StoreError::Statement(inner) => inner
            .as_db_error()
            .is_some_and(|db| *db.code() == SqlState::CHECK_VIOLATION && db.constraint().is_none()),
        _ => false,
    }
}

/// Checks a guarded statement's row count.
pub(super) fn expect_rows(
    statement: &'static str,
    changed: u64,
    expected: usize,
) -> Result<(), StoreError> {
    if changed == expected as u64 {
        Ok(())
    } else {
        Err(StoreError::RowCount {
            statement,
            changed,
            expected: expected as u64,
        })
    }
}
