//! What is open of operations, for the gauges.

use std::time::Duration;

use uuid::Uuid;

use crate::telemetry::OperationGauges;

use super::transaction::{Limits, Transaction};
use super::{Store, StoreError};

const GAUGES: &str = include_str!("sql/operation_gauges.sql");

impl Store {
    /// What is open of the operations that these handlers do.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub(crate) async fn operation_gauges(
        &self,
        handlers: &[i32],
    ) -> Result<Vec<(i32, OperationGauges)>, StoreError> {
        let connection = self.admin().await?;
        let snapshot = Transaction::snapshot(&connection, Limits::SHORT).await?;
        let rows = snapshot.query(GAUGES, &[&handlers]).await?;
        snapshot.commit().await?;
        let read = rows.iter().map(|row| {
            let oldest: Option<&str> = row.get("processing_oldest");
            let since = oldest.and_then(|id| id.parse::<Uuid>().ok()).map(minted_s);
            let now_s: f64 = row.get("now_s");
            let gauges = OperationGauges {
                processing_oldest_s: since.map_or(0.0, |since| (now_s - since).max(0.0)),
                uncertain_oldest_s: row.get("uncertain_oldest_s"),
                unresolved: row.get("unresolved"),
            };
            (row.get("handler_id"), gauges)
        });
        Ok(read.collect())
    }
}

/// The time in the first 48 bits of a `UUIDv7`, in seconds.
fn minted_s(id: Uuid) -> f64 {
    let millis = u64::try_from(id.as_u128() >> 80).unwrap_or(0);
    Duration::from_millis(millis).as_secs_f64()
}
