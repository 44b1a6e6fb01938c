//! What can go wrong between us and PostgreSQL.

use jiff::Timestamp;
use tokio_postgres::error::SqlState;

/// A failed database operation. Messages carry no row values: PostgreSQL's own texts quote their
/// input, so they are neither in the message nor in the chain of causes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A connection URL cannot be used: the key it stands under, and why.
    #[error("{0}: {1}")]
    Url(&'static str, String),
    /// TLS cannot be set up.
    #[error("database TLS: {0}")]
    Tls(String),
    /// No server answers at a URL, or not as it must: the key it stands under, and why.
    #[error("no database connection by {0}: {1}")]
    Unreachable(&'static str, String),
    /// No connection could be had in time.
    #[error("no database connection: {0}")]
    Unavailable(String),
    /// PostgreSQL refused a statement.
    #[error("database refused the statement: {}", describe(.0))]
    Statement(tokio_postgres::Error),
    /// A migration failed; nothing of it was applied.
    #[error("migration: {0}")]
    Migration(String),
    /// The COMMIT was answered together with a warning: not durable everywhere it should be.
    #[error("the commit is not durable: a warning arrived while it was in flight")]
    NotDurable,
    /// A statement inside a handler ended the whole batch; the text is its SQLSTATE.
    #[error("a statement inside a handler was cancelled or rolled back (SQLSTATE {0})")]
    BatchCancelled(String),
    /// A guarded statement changed another number of rows than it must.
    #[error("{statement} changed {changed} rows where {expected} were due")]
    RowCount {
        /// The statement.
        statement: &'static str,
        /// Rows changed.
        changed: u64,
        /// Rows due.
        expected: u64,
    },
    /// What is asked for does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The event is known, its payload was dropped by retention.
    #[error("{0}")]
    PayloadExpired(String),
    /// Sent again now, a call could be applied twice: an earlier one may be under way until then, by the
    /// database's clock. The text says what to do.
    #[error("{text}")]
    CallUnderWay {
        /// Of what, until when, and what to do.
        text: String,
        /// When no such call can be under way any more.
        until: Timestamp,
    },
    /// Runs are being counted already, and there is one count at a time.
    #[error(
        "a count of finished runs is under way on this node, and there is one at a time. Ask again when it has ended, which takes ten \
         minutes at the most; a later `since` makes it short. `oncehook replay --all` without --yes counts in a process of its own"
    )]
    CountUnderWay,
    /// A rule forbids it; the text says which and what to do.
    #[error("{0}")]
    Refused(String),
}

impl StoreError {
    /// The SQLSTATE, if PostgreSQL answered with one.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Statement(error) => error.code(),
            _ => None,
        }
    }

    /// The class of the SQLSTATE, its first two characters.
    pub(crate) fn sqlstate_class(&self) -> Option<&str> {
        self.sqlstate()?.code().get(..2)
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Statement(error)
    }
}

/// Message and SQLSTATE without `DETAIL`, `HINT` and `CONTEXT`, which quote values.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} (SQLSTATE {})", class_text(db.code()), db.code().code()),
        None => "connection lost or protocol error".to_owned(),
    }
}

/// Whether prepared statements are not as this connection left them: gone (26000), or there under a
/// name it has not used (42P05).
pub(super) fn is_statement_of_other_session(code: &SqlState) -> bool {
    [
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::DUPLICATE_PSTATEMENT,
    ]
    .contains(code)
}

/// Even the primary message may quote values ("invalid input syntax for type json: ..."), so
/// outside the well-known conditions only the class is named.
fn class_text(code: &SqlState) -> &'static str {
    if is_statement_of_other_session(code) {
        return "this session lacks a prepared statement or has another's: behind a pooler in transaction mode set \
                database.pooling = \"transaction\"";
    }
    match code.code().get(..2) {
        Some("08") => "connection exception",
        Some("22") => "data exception",
        Some("23") => "integrity constraint violation",
        Some("25") => "invalid transaction state or read-only transaction",
        Some("28") => "invalid authorization",
        Some("3D") => "database does not exist",
        Some("3F") => "schema does not exist: run `oncehook migrate`",
        Some("40") => "transaction rollback (serialization failure or deadlock)",
        Some("42") => "object missing or permission denied: run `oncehook migrate`, check grants",
        Some("53") => "insufficient resources (disk, memory or connections)",
        Some("55") => "lock not available",
        Some("57") => "cancelled or shutting down",
        _ => "error",
    }
}

/// An error with its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
