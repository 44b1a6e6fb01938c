//! The next page of a bulk replay: claimed, read, opened.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::EventKey;

use super::super::again;
use super::super::lanes::LaneOf;
use super::super::query::{Found, hex_of, like_pattern, time};
use super::super::replay::ReplayRequest;
use super::super::transaction::{Limits, Transaction, is_transient};
use super::super::{Store, StoreError};
use super::{Check, Refused, record};

const CLAIM: &str = include_str!("../sql/bulk_claim.sql");
const REACH: &str = include_str!("../sql/bulk_reach.sql");
const PAGE: &str = include_str!("../sql/bulk_page.sql");
const LOCK: &str = include_str!("../sql/bulk_lock.sql");
const ADVANCE: &str = include_str!("../sql/bulk_advance.sql");

/// Runs opened per transaction.
const RUNS_MAX: u32 = 50;
/// Events read per page, however few of them fit.
const EVENTS_MAX: i64 = 2_000;
/// Longer than a page takes; as long others leave it alone.
const LEASE: Duration = Duration::from_secs(5);
/// Refused runs that are kept one by one; all are counted.
const REFUSALS_MAX: usize = 100;

/// What became of one page.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// Of which bulk replay.
    pub bulk: i64,
    /// Runs opened.
    pub opened: u32,
    /// Until the next page is due.
    pub wait: Duration,
    /// Whether it was the last one.
    pub last: bool,
}

/// A finished run that fits.
pub(super) struct Candidate {
    pub(super) found: Found,
    pub(super) source: String,
    handler_id: i32,
    handler: String,
    run: i16,
}

impl Candidate {
    fn refused(&self, why: String) -> Refused {
        Refused {
            source: self.source.clone(),
            key: self.found.key.as_str().to_owned(),
            handler: self.handler.clone(),
            why,
        }
    }
}

/// A bulk replay whose next page is ours to read.
struct Claimed {
    bulk: i64,
    source_id: Option<i32>,
    pattern: Option<String>,
    handler_id: Option<i32>,
    results: Vec<String>,
    since: SystemTime,
    until: SystemTime,
    force: bool,
    verify_bytes: bool,
    rate: u32,
    reason: String,
    actor: String,
    started_at: SystemTime,
    /// The cursor: event and handler.
    after: (Uuid, i32),
    refusals: usize,
}

impl Claimed {
    fn of(row: &Row) -> Self {
        let refusals: serde_json::Value = row.get("refusals");
        Self {
            bulk: row.get("id"),
            source_id: row.get("source_id"),
            pattern: row.get::<_, Option<&str>>("type").map(like_pattern),
            handler_id: row.get("handler_id"),
            results: row.get("results"),
            since: row.get("since"),
            until: row.get("until"),
            force: row.get("force"),
            verify_bytes: row.get("verify_bytes"),
            rate: row.get::<_, i32>("rate").unsigned_abs().max(1),
            reason: row.get("reason"),
            actor: row.get("actor"),
            started_at: row.get("started_at"),
            after: (row.get("after_event"), row.get("after_handler")),
            refusals: refusals.as_array().map_or(0, Vec::len),
        }
    }
}

/// What a page holds, and where the cursor goes.
struct Read {
    candidates: Vec<Candidate>,
    behind: (Uuid, i32),
    last: bool,
}

impl Store {
    /// Opens the next page of a bulk replay that is due: of `only`, or of any. `None` when none is
    /// due here, or when others do it at the moment.
    ///
    /// Two who ask at once never open a page twice. After an error the page was opened or not, and
    /// the next call goes on from what holds.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn next_page(
        &self,
        only: Option<i64>,
        check: Check<'_>,
    ) -> Result<Option<Page>, StoreError> {
        let connection = self.admin().await?;
        let rows = connection
            .query_alone(CLAIM, &[&LEASE.as_secs_f64(), &only])
            .await?;
        drop(connection);
        let Some(claimed) = rows.first().map(Claimed::of) else {
            return Ok(None);
        };
        match self.open_page(&claimed, check).await {
            Err(error) if is_transient(&error) => {
                tracing::debug!(error = %error, bulk = claimed.bulk, "a page is tried again");
                Ok(None)
            }
            done => done,
        }
    }

    async fn open_page(
        &self,
        claimed: &Claimed,
        check: Check<'_>,
    ) -> Result<Option<Page>, StoreError> {
        let read = self.read_page(claimed).await?;
        let mut refused = Vec::new();
        let mut wanted = Vec::with_capacity(read.candidates.len());
        for candidate in &read.candidates {
            let examined = if claimed.verify_bytes {
                self.examine(candidate, check).await?
            } else {
                Ok(())
            };
            match examined {
                Ok(()) => wanted.push(candidate),
                Err(why) => refused.push(candidate.refused(why)),
            }
        }
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let opened = self
            .open_runs(&transaction, claimed, &read, &wanted, refused)
            .await;
        let lanes = match &opened {
            Ok(Some((_, lanes))) => lanes.clone(),
            _ => Vec::new(),
        };
        let ended = transaction.end(opened).await;
        drop(connection);
        // Whichever way it ended: a COMMIT whose answer was lost may have gone through.
        self.look_at(&lanes).await;
        Ok(ended?.map(|(page, _)| page))
    }

    async fn read_page(&self, claimed: &Claimed) -> Result<Read, StoreError> {
        let limit = i64::from(RUNS_MAX.min(claimed.rate));
        let connection = self.admin().await?;
        let snapshot = Transaction::snapshot(&connection, Limits::ALONE).await?;
        let found = async {
            let before_last = EVENTS_MAX - 1;
            let reach = snapshot
                .query(
                    REACH,
                    &[
                        &claimed.after.0,
                        &claimed.since,
                        &claimed.until,
                        &before_last,
                    ],
                )
                .await?;
            let reach: Option<Uuid> = reach.first().map(|row| row.get(0));
            let rows = snapshot
                .query(
                    PAGE,
                    &[
                        &claimed.source_id,
                        &claimed.pattern,
                        &claimed.handler_id,
                        &claimed.results,
                        &claimed.since,
                        &claimed.until,
                        &claimed.after.0,
                        &claimed.after.1,
                        &limit,
                        &claimed.started_at,
                        &reach,
                    ],
                )
                .await?;
            Ok((reach, rows))
        }
        .await;
        let (reach, rows) = snapshot.end(found).await?;
        let candidates = rows.iter().map(candidate).collect::<Result<Vec<_>, _>>()?;
        let is_full = candidates.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let last_found = candidates
            .last()
            .map_or(claimed.after, |last| (last.found.event_id, last.handler_id));
        Ok(Read {
            candidates,
            behind: match reach {
                Some(event) if !is_full => (event, i32::MAX),
                _ => last_found,
            },
            last: reach.is_none() && !is_full,
        })
    }

    /// Opens the runs, each in a savepoint, and moves the cursor. `None` when the page is no longer
    /// ours to open.
    async fn open_runs(
        &self,
        transaction: &Transaction<'_>,
        claimed: &Claimed,
        read: &Read,
        wanted: &[&Candidate],
        mut refused: Vec<Refused>,
    ) -> Result<Option<(Page, Vec<LaneOf>)>, StoreError> {
        let ours = transaction
            .query(LOCK, &[&claimed.bulk, &claimed.after.0, &claimed.after.1])
            .await?;
        if ours.is_empty() {
            return Ok(None);
        }
        let events: Vec<Uuid> = wanted.iter().map(|one| one.found.event_id).collect();
        again::hold_keys(transaction, &events).await?;
        let mut opened: u32 = 0;
        let mut lanes: Vec<LaneOf> = Vec::new();
        for candidate in wanted {
            transaction.savepoint().await?;
            let request = ReplayRequest {
                source: candidate.source.clone(),
                key: candidate.found.key.as_str().to_owned(),
                handler: candidate.handler.clone(),
                force: claimed.force,
                // Whoever was faster has decided.
                expected_run: Some(candidate.run),
                reason: claimed.reason.clone(),
                actor: claimed.actor.clone(),
            };
            match self
                .replay_in(transaction, &request, &candidate.found, Some(claimed.bulk))
                .await
            {
                Ok((_, lane)) => {
                    lanes.extend(lane);
                    opened += 1;
                    transaction.release().await?;
                }
                Err(
                    error @ (StoreError::Refused(_)
                    | StoreError::CallUnderWay { .. }
                    | StoreError::NotFound(_)
                    | StoreError::PayloadExpired(_)),
                ) => {
                    transaction.back_to_savepoint().await?;
                    refused.push(candidate.refused(error.to_string()));
                }
                Err(other) => return Err(other),
            }
        }
        let wait = Duration::from_secs(1) * opened / claimed.rate;
        advance(transaction, claimed, read, opened, wait, &refused).await?;
        let page = Page {
            bulk: claimed.bulk,
            opened,
            wait,
            last: read.last,
        };
        Ok(Some((page, lanes)))
    }
}

/// Moves the cursor behind the page; behind the last one it ends the bulk replay.
async fn advance(
    transaction: &Transaction<'_>,
    claimed: &Claimed,
    read: &Read,
    opened: u32,
    wait: Duration,
    refused: &[Refused],
) -> Result<(), StoreError> {
    let room = REFUSALS_MAX.saturating_sub(claimed.refusals);
    let kept: Vec<&Refused> = refused.iter().take(room).collect();
    let refused = i64::try_from(refused.len()).unwrap_or(i64::MAX);
    let rows = transaction
        .query(
            ADVANCE,
            &[
                &claimed.bulk,
                &read.behind.0,
                &read.behind.1,
                &i64::from(opened),
                &refused,
                &json!(kept),
                &wait.as_secs_f64(),
                &read.last,
            ],
        )
        .await?;
    let Some(done) = rows.first().filter(|_| read.last) else {
        return Ok(());
    };
    let (replayed, refused): (i64, i64) = (done.get(0), done.get(1));
    let after = json!({ "state": "complete", "replayed": replayed, "refused": refused });
    let (actor, reason) = (&claimed.actor, &claimed.reason);
    record(
        transaction,
        claimed.bulk,
        "replay.bulk.end",
        actor,
        reason,
        &after,
    )
    .await
}

fn candidate(row: &Row) -> Result<Candidate, StoreError> {
    let key = EventKey::stored(row.get::<_, &str>("key"))
        .map_err(|error| StoreError::NotFound(error.to_string()))?;
    Ok(Candidate {
        found: Found {
            event_id: row.get("id"),
            key,
            raw_digest: hex_of(row, "raw_digest"),
            first_seen: time(row, "first_seen"),
            source_id: row.get("source_id"),
            source_first_name: row.get("first_name"),
        },
        source: row.get("source"),
        handler_id: row.get("handler_id"),
        handler: row.get("handler"),
        run: row.get("run"),
    })
}
