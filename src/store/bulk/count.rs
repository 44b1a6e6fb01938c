//! How many runs a bulk replay would open: looked at before one is started, and at any time.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Row;

use super::super::query::like_pattern;
use super::super::transaction::{Limits, Transaction};
use super::super::{Store, StoreError};
use super::{Bound, ReplayFilter};

const COUNT: &str = include_str!("../sql/bulk_count.sql");

/// Counting reads every event of the filter's time. It is also how long a count goes on whose asker has
/// left: no HTTP server can tell that from one who has closed its write side and waits. Such a count costs
/// one connection, and whoever would count too is told at once; a command that is interrupted takes its
/// connection with it, and PostgreSQL ends the statement within seconds.
const READING: Duration = Duration::from_mins(10);

/// Finished runs of one source, handler and result that fit.
#[derive(Debug, Clone, Serialize)]
pub struct Candidates {
    /// Source name.
    pub source: String,
    /// Handler name.
    pub handler: String,
    /// How they ended.
    pub result: String,
    /// How many.
    pub runs: u64,
}

impl Store {
    /// How many finished runs fit the filter.
    ///
    /// # Errors
    ///
    /// [`StoreError::CountUnderWay`] at once while this store counts already: it may take minutes, and its
    /// connection is one of the few for whatever people order. [`StoreError::NotFound`] for a source or
    /// handler that is not known; else when the database cannot be asked, or takes longer than ten minutes.
    pub async fn count_replays(
        &self,
        filter: &ReplayFilter,
    ) -> Result<Vec<Candidates>, StoreError> {
        // Before a connection is asked for, and never waited for.
        let Ok(_turn) = self.0.count.try_acquire() else {
            return Err(StoreError::CountUnderWay);
        };
        let connection = self.admin().await?;
        let limits = Limits {
            statement: READING,
            ..Limits::SHORT
        };
        let snapshot = Transaction::snapshot(&connection, limits).await?;
        let counted = async {
            let bound = Bound::of(&snapshot, filter).await?;
            snapshot.plan_for_many_rows().await?;
            let pattern = bound.event_type.as_deref().map(like_pattern);
            snapshot
                .query(
                    COUNT,
                    &[
                        &bound.source_id,
                        &pattern,
                        &bound.handler_id,
                        &bound.results,
                        &bound.since,
                        &bound.until,
                    ],
                )
                .await
        }
        .await;
        let rows = snapshot.end(counted).await?;
        let candidates = |row: &Row| Candidates {
            source: row.get("source"),
            handler: row.get("handler"),
            result: row.get("result"),
            runs: row.get::<_, i64>("runs").unsigned_abs(),
        };
        Ok(rows.iter().map(candidates).collect())
    }
}
