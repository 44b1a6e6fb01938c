//! Whether the database takes writes, and numbers for the metrics.

use crate::telemetry::Gauges;

use super::transaction::{Limits, Transaction};
use super::{Store, StoreError};

const GAUGES: &str = include_str!("sql/gauges.sql");

impl Store {
    /// A real write, undone, and a real COMMIT: a primary that was demoted or ran out of disk fails
    /// here, and one that has lost our registration; one whose standbys are gone does not answer.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]; the database cannot take writes now.
    pub async fn check_writable(&self) -> Result<(), StoreError> {
        let connection = self.admin().await?;
        self.prove_names(&connection).await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let written = async {
            transaction.savepoint().await?;
            transaction
                .execute("INSERT INTO oncehook.receipt (event_id, received_at, count, secret_label) VALUES (gen_random_uuid(), now(), 1, '')", &[])
                .await?;
            Ok(transaction.back_to_savepoint().await?)
        }
        .await;
        transaction.end(written).await
    }

    /// Reads the numbers.
    pub(crate) async fn gauges(
        &self,
        known_handlers: &[i32],
        known_internal: &[i32],
    ) -> Result<Gauges, StoreError> {
        let connection = self.admin().await?;
        let rows = connection
            .query_alone(GAUGES, &[&known_handlers, &known_internal])
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| StoreError::Unavailable("the gauges came without a row".into()))?;
        Ok(Gauges {
            oldest_ready_s: row.get(0),
            late: row.get(1),
            stuck: row.get(2),
            unknown_handler: row.get(3),
            oldest_snapshot_s: row.get(4),
            dead_rows: row.get::<_, Option<i64>>(5).unwrap_or(0),
            held: row.get(6),
            days_ahead: row.get(7),
            paused: row.get(8),
            paused_lanes: row.get(9),
            uncertain: row.get(10),
            uncertain_for_people: row.get(11),
            uncertain_oldest_s: row.get(12),
            emitted_oldest_s: row.get(13),
            emitted_unknown_source: row.get(14),
        })
    }
}
