//! The engine's transaction as a handler may use it.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::StoreError;
use super::transaction::Transaction;

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
