//! Lanes: who is next when a head is gone.
//!
//! A delivery with a lane is inserted `blocked`. The transaction that ends a head promotes the next
//! one in the statement after it. Whatever may have left a lane without a head then looks again
//! *after* its commit: an insert, because it cannot know whether there is one, and an end, because
//! an insert that committed meanwhile was invisible to it. Of any two such commits the later one
//! sees what both did, so a lane is stuck only if a node dies between its commit and its look;
//! [`Store::lanes_that_stand_still`] finds those.
//!
//! A head that waits for its time (`not_yet`) gives way: the look after an insert puts it back among the
//! blocked ones, where it is passed over until its time has come.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::error::SqlState;

use super::delivery::Lease;
use super::transaction::{Limits, Transaction, is_transient};
use super::{Store, StoreError};

const PROMOTE: &str = include_str!("sql/lane_promote.sql");
const GIVE_WAY: &str = include_str!("sql/lane_give_way.sql");
const HEADLESS: &str = include_str!("sql/lane_headless.sql");

/// A handler's id and the name of a lane of its.
pub(crate) type LaneOf = (i32, String);

/// Lanes that wait for their look; beyond this, those that come are left to
/// [`Store::lanes_that_stand_still`].
const PENDING_MAX: usize = 100_000;
/// Lanes per statement.
const PAGE: usize = 1_000;
/// Lanes that one statement of the search looks at: some tens of milliseconds.
const SEARCHED: i32 = 10_000;
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

    /// Promotes the next of each lane that has no head, or whose head waits for its time.
    pub(crate) async fn promote_heads(&self, lanes: &[LaneOf]) -> Looked {
        let mut looked = Looked::default();
        for page in lanes.chunks(PAGE) {
            match self.promote_together(page).await {
                Err(error) if page.len() > 1 && (is_transient(&error) || is_promoted(&error)) => {
                    for lane in page.chunks(1) {
                        looked.add(lane, self.promote_together(lane).await);
                    }
                }
                promoted => looked.add(page, promoted),
            }
        }
        looked
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
        let promoted = async {
            transaction.execute(GIVE_WAY, &[&handlers, &names]).await?;
            transaction.execute(PROMOTE, &[&handlers, &names]).await
        }
        .await;
        transaction.end(promoted).await
    }

    /// Lanes in which deliveries wait, and none is the head or the head waits for its time while
    /// another could run. One that is found twice, some time apart, was left so by a node that died; a
    /// commit of this moment shows as one, too.
    pub(crate) async fn lanes_that_stand_still(&self) -> Result<BTreeSet<LaneOf>, StoreError> {
        let mut found = BTreeSet::new();
        let mut after = (0, String::new());
        loop {
            let connection = self.admin().await?;
            let rows = connection
                .query_by_index(HEADLESS, &[&after.0, &after.1, &SEARCHED])
                .await?;
            let mut last = None;
            for row in rows {
                let lane: LaneOf = (row.get("handler_id"), row.get("lane"));
                if row.get("is_last") {
                    last = Some(lane.clone());
                }
                if row.get("stands_still") {
                    found.insert(lane);
                }
            }
            match last {
                Some(last) if found.len() < PENDING_MAX => after = last,
                _ => return Ok(found),
            }
        }
    }
}

/// What a look at lanes did.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// Deliveries promoted.
    pub(crate) promoted: u64,
    /// Lanes that want another look.
    pub(crate) left: Vec<LaneOf>,
    /// Why, the last time.
    pub(crate) error: Option<StoreError>,
}

impl Looked {
    fn add(&mut self, lanes: &[LaneOf], promoted: Result<u64, StoreError>) {
        match promoted {
            Ok(promoted) => self.promoted += promoted,
            // Another look was first.
            Err(error) if lanes.len() == 1 && is_promoted(&error) => {}
            Err(error) => {
                self.left.extend_from_slice(lanes);
                self.error = Some(error);
            }
        }
    }
}

fn lock(pending: &Pending) -> std::sync::MutexGuard<'_, BTreeSet<LaneOf>> {
    pending.lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lane has got its head from somebody else meanwhile.
fn is_promoted(error: &StoreError) -> bool {
    error.sqlstate() == Some(&SqlState::UNIQUE_VIOLATION)
}
