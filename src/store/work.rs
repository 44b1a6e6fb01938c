//! The engine's transaction as a handler may use it.

use std::time::SystemTime;

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::StoreError;
use super::transaction::Transaction;

/// An event to emit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Emit<'a> {
    /// Name of a source with provider `internal`.
    pub source: &'a str,
    /// Its key: two events of the source with one key are one event. 1 to 1,024 bytes.
    pub key: &'a str,
    /// Its type, for the handlers' patterns.
    pub event_type: Option<&'a str>,
    /// Its bytes, 1 MiB at most.
    pub body: &'a [u8],
    /// Its business object.
    pub entity: Option<&'a str>,
    /// When it happened; left out: now.
    pub occurred_at: Option<Timestamp>,
    /// The event that is being handled, for the timeline.
    pub cause: Option<Uuid>,
}

/// The engine's transaction as a handler may use it: there is no commit.
#[derive(Debug)]
pub struct Work<'t> {
    transaction: &'t Transaction<'t>,
}

impl<'t> Work<'t> {
    pub(crate) fn new(transaction: &'t Transaction<'t>) -> Self {
        Self { transaction }
    }
}

impl Work<'_> {
    /// Runs a statement that returns rows.
    ///
    /// # Errors
    ///
    /// As `tokio_postgres::Client::query`.
    pub async fn query(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.transaction
            .connection()
            .client()
            .query(sql, params)
            .await
    }

    /// Runs a statement that returns at most one row.
    ///
    /// # Errors
    ///
    /// As `tokio_postgres::Client::query_opt`.
    pub async fn query_opt(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, tokio_postgres::Error> {
        self.transaction
            .connection()
            .client()
            .query_opt(sql, params)
            .await
    }

    /// Runs a statement and returns the number of rows it changed.
    ///
    /// # Errors
    ///
    /// As `tokio_postgres::Client::execute`.
    pub async fn execute(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, tokio_postgres::Error> {
        self.transaction
            .connection()
            .client()
            .execute(sql, params)
            .await
    }

    /// Emits an event to an internal source: it is stored and handled exactly if this transaction
    /// commits, that is, if the event that is being handled gets its outcome.
    ///
    /// # Errors
    ///
    /// As `tokio_postgres::Client::execute`; a database error names the argument that is wrong.
    pub async fn emit(&self, event: &Emit<'_>) -> Result<(), tokio_postgres::Error> {
        let occurred_at = event
            .occurred_at
            .and_then(|at| SystemTime::try_from(at).ok());
        let text = event.cause.map(|id| id.to_string());
        self.execute(
            "SELECT oncehook.emit_bytes($1, $2, $3, $4, $5, $6,
                    CASE WHEN $7::text IS NOT NULL THEN ROW($7::uuid, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::oncehook.delivered END)",
            &[
                &event.source,
                &event.key,
                &event.event_type,
                &event.body,
                &event.entity,
                &occurred_at,
                &text,
            ],
        )
        .await
        .map(drop)
    }

    /// Runs a statement known at compile time, prepared once per connection where the connection
    /// has a session of its own.
    ///
    /// # Errors
    ///
    /// As `tokio_postgres::Client::execute`.
    pub async fn execute_prepared(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, tokio_postgres::Error> {
        match self.transaction.execute(sql, params).await {
            Ok(changed) => Ok(changed),
            Err(StoreError::Statement(error)) => Err(error),
            // A parameter of a type of one's own, without a session to prepare in; or a wrong number
            // of them, which the driver puts in its own words.
            Err(_) => self.execute(sql, params).await,
        }
    }
}
