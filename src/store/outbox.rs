//! Events that were emitted inside a transaction and are on their way to be stored.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use uuid::Uuid;

use super::transaction::{Limits, Transaction};
use super::{Store, StoreError};

const CLAIM: &str = include_str!("sql/emitted_claim.sql");
const LEFT: &str = include_str!("sql/emitted_left.sql");

/// Emitted events taken at once.
const BATCH: i64 = 100;
/// Bytes of their bodies, unless one alone has more.
const BYTES: i64 = 4 << 20;
/// A body has no more, if `emit` has written it.
const BODY: i64 = 1 << 20;
/// A node that has not stored what it took within this time is taken for dead.
const LEASE: Duration = Duration::from_secs(10);
/// So long may it take to store what was taken.
pub(crate) const STORED_WITHIN: Duration = Duration::from_secs(8);
const _: () = assert!(STORED_WITHIN.as_secs() < LEASE.as_secs());

/// One emitted event.
#[derive(Debug)]
pub(crate) struct Emitted {
    pub(crate) id: i64,
    pub(crate) source_id: i32,
    pub(crate) key: String,
    pub(crate) event_type: Option<String>,
    pub(crate) entity: Option<String>,
    pub(crate) occurred_at: Option<Timestamp>,
    pub(crate) body: Vec<u8>,
    pub(crate) caused_by: Option<Uuid>,
    pub(crate) correlation_id: Uuid,
}

impl Store {
    /// Takes emitted events of these sources for this node.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]; what was taken by a statement whose answer was lost comes again when its
    /// lease has ended.
    pub(crate) async fn claim_emitted(&self, sources: &[i32]) -> Result<Vec<Emitted>, StoreError> {
        let connection = self.ingest().await?;
        let rows = connection
            .query_alone(CLAIM, &[&sources, &BATCH, &LEASE.as_secs_f64(), &BYTES])
            .await?;
        let mut emitted: Vec<Emitted> = rows
            .iter()
            .map(|row| Emitted {
                id: row.get("id"),
                source_id: row.get("source_id"),
                key: row.get("key"),
                event_type: row.get("type"),
                entity: row.get("entity"),
                occurred_at: row
                    .get::<_, Option<SystemTime>>("occurred_at")
                    .and_then(|at| Timestamp::try_from(at).ok()),
                body: row.get("body"),
                caused_by: row.get("caused_by"),
                correlation_id: row.get("correlation_id"),
            })
            .collect();
        emitted.sort_unstable_by_key(|event| event.id);
        Ok(emitted)
    }

    /// Whether none of these is in the outbox any more, once nobody is taking one of them out.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]; nothing is known then.
    pub(crate) async fn have_left_outbox(&self, ids: &[i64]) -> Result<bool, StoreError> {
        let connection = self.ingest().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let left = transaction.query(LEFT, &[&ids]).await;
        Ok(transaction.end(left).await?.is_empty())
    }

    /// Whether a claim takes as much as it may, so that more may be waiting.
    pub(crate) fn is_full(emitted: &[Emitted]) -> bool {
        let bytes: usize = emitted.iter().map(|event| event.body.len()).sum();
        emitted.len() as u64 >= BATCH.unsigned_abs() || bytes as u64 > (BYTES - BODY).unsigned_abs()
    }
}
