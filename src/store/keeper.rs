//! House-keeping: partitions ahead, capped tables. Every step may run on any node at any time.

use std::time::Duration;

use super::transaction::{Limits, Transaction, is_missing_partition};
use super::{Store, StoreError};

const CAP: &str = include_str!("sql/rejected_cap.sql");

/// Days for which partitions are made ahead.
pub(crate) const DAYS_AHEAD: i32 = 14;

/// Refused requests that are kept.
pub(crate) const REJECTED_KEPT: i64 = 100_000;

impl Store {
    /// Makes the missing day partitions; returns how many were made.
    pub(crate) async fn make_partitions(&self) -> Result<i32, StoreError> {
        let connection = self.admin().await?;
        let limits = Limits {
            statement: Duration::from_secs(30),
            lock: Duration::from_secs(10),
            ..Limits::SHORT
        };
        let transaction = Transaction::begin(&connection, limits).await?;
        let made = transaction
            .query("SELECT oncehook.make_partitions($1)", &[&DAYS_AHEAD])
            .await;
        let rows = transaction.end(made).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    /// Makes the day partitions if it was their absence that failed a write; returns how many.
    /// `None` when it was something else or they cannot be made. None to make, `Some(0)`: another
    /// node was quicker, or the row is of a day for which none are made.
    pub(crate) async fn made_missing_partitions(&self, error: &StoreError) -> Option<i32> {
        if !is_missing_partition(error) {
            return None;
        }
        match self.make_partitions().await {
            Ok(made) => {
                tracing::error!(partitions = made, "partitions were missing");
                Some(made)
            }
            Err(error) => {
                tracing::error!(error = %error, "partitions are missing and cannot be made");
                None
            }
        }
    }

    /// Deletes the oldest refused requests above the cap.
    pub(crate) async fn cap_rejected(&self) -> Result<u64, StoreError> {
        let connection = self.admin().await?;
        connection.execute_alone(CAP, &[&REJECTED_KEPT]).await
    }
}
