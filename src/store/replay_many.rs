//! New runs of many finished ones, by a filter: counted first, run at a bounded rate, each audited.
//!
//! A page of candidates is read, then each is opened by the very path of a single replay. What was
//! opened is live and fits no filter any more, so a command that was interrupted goes on where it was.

use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::{Digest, Ending, EventKey};

use super::lanes::LaneOf;
use super::query::{Found, hex_of, like_pattern, time};
use super::replay::ReplayRequest;
use super::transaction::{Limits, Transaction};
use super::{Store, StoreError, audit};

const PAGE: &str = include_str!("sql/replay_many_page.sql");
const COUNT: &str = include_str!("sql/replay_many_count.sql");
const STORED: &str = include_str!("sql/replay_many_stored.sql");

/// Runs opened per transaction.
const BATCH: u32 = 50;
/// Counting reads every event of the filter's time.
const READING: Duration = Duration::from_mins(10);
/// Refused runs that are told one by one; all are counted.
const REFUSED_MAX: usize = 100;

/// Which finished runs are meant. What is left out fits everything.
#[derive(Debug, Clone)]
pub struct ReplayFilter {
    /// Source name.
    pub source: Option<String>,
    /// Event type, `*` for any run of characters.
    pub event_type: Option<String>,
    /// Handler name.
    pub handler: Option<String>,
    /// How the last run ended.
    pub results: Vec<Ending>,
    /// Received since.
    pub since: Timestamp,
    /// Received until.
    pub until: Timestamp,
}

/// A bulk replay as asked for.
#[derive(Debug, Clone)]
pub struct ReplayMany {
    /// Which runs.
    pub filter: ReplayFilter,
    /// Also what has succeeded: under new effect keys.
    pub force: bool,
    /// New runs per second, at most.
    pub rate: u32,
    /// Why; goes into `audit`.
    pub reason: String,
    /// Who; goes into `audit`.
    pub actor: String,
}

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

/// A run that was not opened again.
#[derive(Debug, Clone, Serialize)]
pub struct Refused {
    /// Source name.
    pub source: String,
    /// Event key.
    pub key: String,
    /// Handler name.
    pub handler: String,
    /// Why not.
    pub why: String,
}

/// What a bulk replay has done so far.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ReplayedMany {
    /// Its number in the audit and in the timelines.
    pub bulk: Uuid,
    /// Runs opened.
    pub replayed: u64,
    /// Runs not opened.
    pub refused: u64,
    /// The first of them.
    pub examples: Vec<Refused>,
}

/// A stored request, for [`Check`].
#[derive(Debug)]
pub struct StoredRequest {
    /// Source name.
    pub source: String,
    /// When it came.
    pub received_at: Timestamp,
    /// Method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Query with masked values.
    pub query: Option<String>,
    /// Stored headers, a JSON array of `[name, value]`.
    pub headers: Vec<u8>,
    /// The bytes on the wire.
    pub body: Vec<u8>,
}

/// Looks at a stored request again before its event is replayed; says what is wrong with it.
pub type Check<'c> = &'c (dyn Fn(&StoredRequest) -> Result<(), String> + Sync);

impl Store {
    /// How many finished runs fit the filter.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked, or takes longer than ten minutes.
    pub async fn count_replays(
        &self,
        filter: &ReplayFilter,
    ) -> Result<Vec<Candidates>, StoreError> {
        let connection = self.admin().await?;
        let limits = Limits {
            statement: READING,
            ..Limits::SHORT
        };
        let snapshot = Transaction::snapshot(&connection, limits).await?;
        let bound = Bound::of(filter)?;
        let counted = async {
            snapshot.plan_for_many_rows().await?;
            snapshot.query(COUNT, &bound.params()).await
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

    /// Opens new runs of what fits. `progress` is called after each transaction.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] for an empty reason; else when the database cannot be asked. What was
    /// opened before stays, and the same command goes on from there.
    pub async fn replay_many(
        &self,
        many: &ReplayMany,
        check: Option<Check<'_>>,
        mut progress: impl FnMut(&ReplayedMany),
    ) -> Result<ReplayedMany, StoreError> {
        if many.reason.trim().is_empty() {
            return Err(StoreError::Refused(
                "a reason is required: it goes into the audit".into(),
            ));
        }
        let mut done = ReplayedMany {
            bulk: Uuid::new_v4(),
            ..ReplayedMany::default()
        };
        let rate = many.rate.max(1);
        let batch = i64::from(BATCH.min(rate));
        let mut after = (Uuid::nil(), 0);
        let began = Instant::now();
        let mut looked: u32 = 0;
        loop {
            let page = self.page(&many.filter, after, batch).await?;
            let Some(last) = page.last() else { break };
            after = (last.found.event_id, last.handler_id);
            let mut wanted = Vec::with_capacity(page.len());
            for candidate in page {
                match self.examine(&candidate, check).await? {
                    Ok(()) => wanted.push(candidate),
                    Err(why) => done.refuse(&candidate, why),
                }
            }
            looked = looked.saturating_add(u32::try_from(wanted.len()).unwrap_or(u32::MAX));
            self.open(many, &wanted, &mut done).await?;
            progress(&done);
            let due = Duration::from_secs(1) * looked / rate;
            tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        }
        self.record_bulk(many, &done).await?;
        Ok(done)
    }

    async fn page(
        &self,
        filter: &ReplayFilter,
        after: (Uuid, i32),
        limit: i64,
    ) -> Result<Vec<Candidate>, StoreError> {
        let connection = self.admin().await?;
        let limits = Limits {
            statement: READING,
            ..Limits::SHORT
        };
        let snapshot = Transaction::snapshot(&connection, limits).await?;
        let bound = Bound::of(filter)?;
        let mut params = bound.params().to_vec();
        params.extend([
            &after.0 as &(dyn tokio_postgres::types::ToSql + Sync),
            &after.1,
            &limit,
        ]);
        let rows = snapshot.query(PAGE, &params).await;
        let rows = snapshot.end(rows).await?;
        rows.iter().map(candidate).collect()
    }

    /// Whether the stored bytes are those that were received, where that is asked for.
    async fn examine(
        &self,
        candidate: &Candidate,
        check: Option<Check<'_>>,
    ) -> Result<Result<(), String>, StoreError> {
        let Some(check) = check else {
            return Ok(Ok(()));
        };
        let connection = self.admin().await?;
        let rows = connection
            .query_alone(STORED, &[&candidate.found.event_id])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Err("payload-expired: the payload was dropped".to_owned()));
        };
        let request = StoredRequest {
            source: candidate.source.clone(),
            received_at: time(row, "received_at"),
            method: row.get("method"),
            path: row.get("path"),
            query: row.get("query"),
            headers: row.get("headers"),
            body: row.get("body"),
        };
        let place = |column| usize::try_from(row.get::<_, i32>(column)).unwrap_or(usize::MAX);
        let start = place("item_offset");
        let end = start.saturating_add(place("item_length"));
        let item = request.body.get(start..end).unwrap_or_default();
        if Digest::of(item).hex() != candidate.found.raw_digest {
            return Ok(Err(
                "its stored bytes are not those that were received".to_owned()
            ));
        }
        Ok(check(&request))
    }

    /// Opens the runs in one transaction, each in a savepoint; then lets their lanes go on.
    async fn open(
        &self,
        many: &ReplayMany,
        wanted: &[Candidate],
        done: &mut ReplayedMany,
    ) -> Result<(), StoreError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let opened = async {
            let mut lanes: Vec<LaneOf> = Vec::new();
            let mut refused = Vec::new();
            for candidate in wanted {
                transaction.savepoint().await?;
                let request = ReplayRequest {
                    source: candidate.source.clone(),
                    key: candidate.found.key.as_str().to_owned(),
                    handler: candidate.handler.clone(),
                    force: many.force,
                    // Whoever was faster has decided.
                    expected_run: Some(candidate.run),
                    reason: many.reason.clone(),
                    actor: many.actor.clone(),
                };
                let bulk = Some(done.bulk);
                match self
                    .replay_in(&transaction, &request, &candidate.found, bulk)
                    .await
                {
                    Ok((_, lane)) => {
                        lanes.extend(lane);
                        transaction.release().await?;
                    }
                    Err(
                        error @ (StoreError::Refused(_)
                        | StoreError::NotFound(_)
                        | StoreError::PayloadExpired(_)),
                    ) => {
                        transaction.back_to_savepoint().await?;
                        refused.push((candidate, error.to_string()));
                    }
                    Err(other) => return Err(other),
                }
            }
            Ok((lanes, refused))
        }
        .await;
        let lanes = opened.as_ref().map_or_else(
            |_| Vec::new(),
            |(lanes, _): &(Vec<LaneOf>, _)| lanes.clone(),
        );
        let ended = transaction.end(opened).await;
        drop(connection);
        // Whichever way it ended: a COMMIT whose answer was lost may have gone through.
        self.look_at(&lanes).await;
        let (_, refused) = ended?;
        done.replayed += (wanted.len() - refused.len()) as u64;
        for (candidate, why) in refused {
            done.refuse(candidate, why);
        }
        Ok(())
    }

    async fn record_bulk(&self, many: &ReplayMany, done: &ReplayedMany) -> Result<(), StoreError> {
        let filter = &many.filter;
        let results: Vec<&str> = filter
            .results
            .iter()
            .map(|ending| ending.as_str())
            .collect();
        let after = serde_json::json!({
            "source": filter.source, "type": filter.event_type, "handler": filter.handler, "results": results,
            "since": filter.since, "until": filter.until, "force": many.force, "rate": many.rate,
            "replayed": done.replayed, "refused": done.refused,
        });
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let subject = done.bulk.to_string();
        let recorded = audit::record(
            &transaction,
            &many.actor,
            "replay.bulk",
            &subject,
            Some(&many.reason),
            None,
            &after,
        )
        .await;
        transaction.end(recorded).await
    }
}

impl ReplayedMany {
    fn refuse(&mut self, candidate: &Candidate, why: String) {
        self.refused += 1;
        if self.examples.len() < REFUSED_MAX {
            self.examples.push(Refused {
                source: candidate.source.clone(),
                key: candidate.found.key.as_str().to_owned(),
                handler: candidate.handler.clone(),
                why,
            });
        }
    }
}

/// A filter as the statements take it.
struct Bound<'f> {
    source: &'f Option<String>,
    pattern: Option<String>,
    handler: &'f Option<String>,
    results: Vec<&'static str>,
    since: SystemTime,
    until: SystemTime,
}

impl<'f> Bound<'f> {
    fn of(filter: &'f ReplayFilter) -> Result<Self, StoreError> {
        let outside =
            |_| StoreError::Refused("that time lies outside what PostgreSQL can hold".into());
        Ok(Self {
            source: &filter.source,
            pattern: filter.event_type.as_deref().map(like_pattern),
            handler: &filter.handler,
            results: filter
                .results
                .iter()
                .map(|ending| ending.as_str())
                .collect(),
            since: SystemTime::try_from(filter.since.max(Timestamp::UNIX_EPOCH))
                .map_err(outside)?,
            until: SystemTime::try_from(filter.until.max(Timestamp::UNIX_EPOCH))
                .map_err(outside)?,
        })
    }

    fn params(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 6] {
        [
            self.source,
            &self.pattern,
            self.handler,
            &self.results,
            &self.since,
            &self.until,
        ]
    }
}

/// A finished run that fits.
struct Candidate {
    found: Found,
    source: String,
    handler_id: i32,
    handler: String,
    run: i16,
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
