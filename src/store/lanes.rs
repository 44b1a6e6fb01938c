//! Lanes: who is next when a head is gone.
//!
//! A delivery with a lane is inserted `blocked`. The transaction that ends a head promotes the next
//! one in the statement after it. Whatever may have left a lane without a head then looks again
//! *after* its commit: an insert, because it cannot know whether there is one, and an end, because
//! an insert that committed meanwhile was invisible to it. Of any two such commits the later one
//! sees what both did, so a lane is stuck only if a node dies between its commit and its look;
//! [`Store::headless_lanes`] finds those.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::error::SqlState;

use super::delivery::Lease;
use super::transaction::{Limits, Transaction, is_transient};
use super::{Store, StoreError};

const PROMOTE: &str = include_str!("sql/lane_promote.sql");
const HEADLESS: &str = include_str!("sql/lane_headless.sql");

/// A handler's id and the name of a lane of its.
pub(crate) type LaneOf = (i32, String);

/// Lanes that wait for their look; beyond this, those that come are left to [`Store::headless_lanes`].
const PENDING_MAX: usize = 100_000;
/// Lanes per statement.
const PAGE: usize = 1_000;
/// The look may hold a blocked row that the end of a head wants too. It gives up long before
/// PostgreSQL's search for deadlocks (1 s) would end the other.
const LOCK: Duration = Duration::from_millis(50);

/// Lanes to look at after a commit.
#[derive(Debug, Default)]
pub(super) struct Pending {
    lanes: Mutex<BTreeSet<LaneOf>>,
    added: Notify,
}

/// The lanes of leases.
pub(crate) fn of<'l>(leases: impl IntoIterator<Item = &'l Lease>) -> impl Iterator<Item = LaneOf> {
    leases.into_iter().filter_map(|lease| {
        let lane = lease.lane.as_ref()?;
        Some((lease.handler_id, lane.clone()))
    })
}

/// Promotes the next of each lane whose head the transaction has just taken away.
pub(super) async fn promote_next<'l>(
    transaction: &Transaction<'_>,
    lanes: impl Iterator<Item = (i32, Option<&'l str>)>,
) -> Result<(), StoreError> {
    let (handlers, lanes): (Vec<i32>, Vec<&str>) = lanes
        .filter_map(|(handler, lane)| Some((handler, lane?)))
        .unzip();
    if !lanes.is_empty() {
        transaction.execute(PROMOTE, &[&handlers, &lanes]).await?;
    }
    Ok(())
}

impl Store {
    /// Has lanes looked at soon, after the commit that may have left them without a head. Never
    /// waits and never fails: it stands between a commit and its acknowledgement.
    pub(crate) fn recheck_lanes(&self, lanes: impl IntoIterator<Item = LaneOf>) {
        let mut lanes = lanes.into_iter().peekable();
        if lanes.peek().is_none() {
            return;
        }
        let mut pending = lock(&self.0.lanes);
        for lane in lanes {
            if pending.len() >= PENDING_MAX {
                tracing::warn!("too many lanes wait for a look; the rest is found by the sweep");
                break;
            }
            pending.insert(lane);
        }
        drop(pending);
        self.0.lanes.added.notify_one();
    }

    /// Waits for lanes to look at.
    pub(crate) async fn lanes_to_recheck(&self) -> Vec<LaneOf> {
        loop {
            let some = self.take_lanes();
            if !some.is_empty() {
                return some;
            }
            self.0.lanes.added.notified().await;
        }
    }

    /// Lanes to look at now.
    pub(crate) fn take_lanes(&self) -> Vec<LaneOf> {
        let mut pending = lock(&self.0.lanes);
        let some: Vec<LaneOf> = pending.iter().take(PAGE).cloned().collect();
        for lane in &some {
            pending.remove(lane);
        }
        if !pending.is_empty() {
            self.0.lanes.added.notify_one();
        }
        some
    }

    /// Promotes the first of each lane that has no head; returns how many.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]; lanes not promoted wait for another look.
    pub(crate) async fn promote_heads(&self, lanes: &[LaneOf]) -> Result<u64, StoreError> {
        match self.promote_together(lanes).await {
            Err(error) if lanes.len() > 1 && (is_transient(&error) || is_promoted(&error)) => {
                let mut promoted = 0;
                for lane in lanes {
                    promoted += self.promote_together(std::slice::from_ref(lane)).await?;
                }
                Ok(promoted)
            }
            // Another look was first.
            Err(error) if is_promoted(&error) => Ok(0),
            other => other,
        }
    }

    async fn promote_together(&self, lanes: &[LaneOf]) -> Result<u64, StoreError> {
        let handlers: Vec<i32> = lanes.iter().map(|(handler, _)| *handler).collect();
        let names: Vec<&str> = lanes.iter().map(|(_, lane)| lane.as_str()).collect();
        let connection = self.admin().await?;
        let limits = Limits {
            lock: LOCK,
            ..Limits::SHORT
        };
        let transaction = Transaction::begin(&connection, limits).await?;
        let promoted = transaction.execute(PROMOTE, &[&handlers, &names]).await;
        transaction.end(promoted).await
    }

    /// Lanes in which deliveries wait and none is the head. One that is found twice, some time
    /// apart, was left so by a node that died; a commit of this moment shows as one, too.
    pub(crate) async fn headless_lanes(&self) -> Result<BTreeSet<LaneOf>, StoreError> {
        let connection = self.admin().await?;
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let rows = connection.query_by_index(HEADLESS, &[&limit]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}

fn lock(pending: &Pending) -> std::sync::MutexGuard<'_, BTreeSet<LaneOf>> {
    pending.lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lane has got its head from somebody else meanwhile.
fn is_promoted(error: &StoreError) -> bool {
    error.sqlstate() == Some(&SqlState::UNIQUE_VIOLATION)
}
