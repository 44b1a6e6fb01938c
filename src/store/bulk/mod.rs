//! Bulk replays: new runs of many finished ones, as one order of a person.
//!
//! An order is a row of `bulk_replay`. Its start fixes what it means; whoever asks ([`Store::next_page`])
//! opens its next page, a node or the command that started it, and the cursor is moved by the
//! transaction that opens the page's runs. So it may be interrupted at any moment, goes on by its
//! number, and meets each (event, handler) once.

mod count;
mod page;
mod stored;

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::Ending;

use super::query::{time, time_opt};
use super::transaction::{Limits, Transaction};
use super::{Store, StoreError, audit};

pub use count::Candidates;
pub use page::Page;
pub use stored::{Check, StoredRequest, verify};

const NAMES: &str = include_str!("../sql/bulk_names.sql");
const TURN: &str = include_str!("../sql/bulk_turn.sql");
const OVERLAP: &str = include_str!("../sql/bulk_overlap.sql");
const INSERT: &str = include_str!("../sql/bulk_insert.sql");
const SWITCH: &str = include_str!("../sql/bulk_switch.sql");
const LIST: &str = include_str!("../sql/bulk_list.sql");
const HISTORY: &str = include_str!("../sql/bulk_history.sql");

/// Bulk replays that a list shows.
const LIST_MAX: i64 = 100;

/// Most new runs per second that can be asked for.
pub const RATE_MAX: u32 = 10_000;
/// New runs per second, where nothing is said.
pub const RATE: u32 = 100;

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
    /// Received until; `None` for now, by the database's clock.
    pub until: Option<Timestamp>,
}

impl ReplayFilter {
    /// Whether it means anything, and what succeeded only by `force`.
    ///
    /// # Errors
    ///
    /// What is wrong with it, for people.
    pub fn check(&self, force: bool) -> Result<(), &'static str> {
        if self.results.is_empty() {
            return Err("no result is named, so nothing can fit");
        }
        if self.results.contains(&Ending::Succeeded) && !force {
            return Err(
                "what succeeded is run again by force only (--force, \"force\": true), under new effect keys: outside effects happen again",
            );
        }
        if self.until.is_some_and(|until| self.since >= until) {
            return Err("`since` must lie before `until`");
        }
        Ok(())
    }
}

/// A bulk replay as asked for.
#[derive(Debug, Clone)]
pub struct BulkOrder {
    /// Which runs.
    pub filter: ReplayFilter,
    /// Also what has succeeded: under new effect keys.
    pub force: bool,
    /// Only what is stored as it was received and is verified by a secret that is configured now.
    pub verify_bytes: bool,
    /// New runs per second, at most, over all nodes.
    pub rate: u32,
    /// Even if another one means the same runs: one that has not ended is given up.
    pub anew: bool,
    /// Why; goes into `audit`.
    pub reason: String,
    /// Who; goes into `audit`.
    pub actor: String,
}

/// What can be said to a bulk replay that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkWord {
    /// No further page until it is continued.
    Stop,
    /// Go on behind the last page.
    Continue,
    /// Never go on. What was opened stays.
    GiveUp,
}

/// A run that was not opened again.
#[derive(Debug, Clone, Serialize, Deserialize)]
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

/// A bulk replay as it stands.
#[derive(Debug, Clone, Serialize)]
pub struct BulkReplay {
    /// Its number, in the audit and in the timelines too.
    pub bulk: i64,
    /// `running`, `stopped`, `complete` or `given_up`.
    pub state: String,
    /// Runs opened.
    pub replayed: u64,
    /// Runs not opened.
    pub refused: u64,
    /// The first hundred of them; a list of bulk replays has none.
    pub refusals: Vec<Refused>,
    /// When the last event that was looked at was received; events are taken in this order.
    pub reached: Option<Timestamp>,
    /// Source name.
    pub source: Option<String>,
    /// Handler name.
    pub handler: Option<String>,
    /// Event type, `*` for any run of characters.
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    /// How the last run ended.
    pub results: Vec<String>,
    /// Received since.
    pub since: Timestamp,
    /// Received until.
    pub until: Timestamp,
    /// Also what has succeeded.
    pub force: bool,
    /// Whether stored bytes are checked again.
    pub verify_bytes: bool,
    /// New runs per second, at most.
    pub rate: u32,
    /// Why.
    pub reason: String,
    /// Who.
    pub actor: String,
    /// When; what finished later is not meant.
    pub started_at: Timestamp,
    /// When it was complete or given up.
    pub ended_at: Option<Timestamp>,
}

/// A bulk replay with what was done to it.
#[derive(Debug, Clone, Serialize)]
pub struct BulkDetails {
    /// As it stands.
    #[serde(flatten)]
    pub bulk: BulkReplay,
    /// By time.
    pub history: Vec<BulkAction>,
}

/// What was done to a bulk replay.
#[derive(Debug, Clone, Serialize)]
pub struct BulkAction {
    /// When.
    pub at: Timestamp,
    /// `started`, `stopped`, `continued`, `complete` or `given_up`.
    pub what: String,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
}

impl Store {
    /// Starts a bulk replay and gives its number; [`Store::next_page`] does the work.
    ///
    /// What it means is fixed now: runs that finish later are not meant.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] for an empty reason or an impossible filter, and, unless `anew`, while
    /// another that may mean the same runs has not ended, or when both run again what succeeded and
    /// the other did so within a day. [`StoreError::NotFound`] for a source or handler that is not known.
    pub async fn start_bulk(&self, order: &BulkOrder) -> Result<i64, StoreError> {
        reasoned(&order.reason)?;
        let filter = &order.filter;
        filter
            .check(order.force)
            .map_err(|text| StoreError::Refused(text.into()))?;
        let connection = self.admin().await?;
        // Two that start at once wait for each other.
        let transaction = Transaction::begin(&connection, Limits::ALONE).await?;
        let started = async {
            let bound = Bound::of(&transaction, filter).await?;
            transaction.query(TURN, &[]).await?;
            make_room(&transaction, order, &bound).await?;
            let rate = i32::try_from(order.rate.clamp(1, RATE_MAX)).unwrap_or(i32::MAX);
            let rows = transaction
                .query(
                    INSERT,
                    &[
                        &bound.source_id,
                        &bound.event_type,
                        &bound.handler_id,
                        &bound.results,
                        &bound.since,
                        &bound.until,
                        &order.force,
                        &order.verify_bytes,
                        &rate,
                        &order.reason,
                        &order.actor,
                    ],
                )
                .await?;
            let bulk: i64 = rows.first().map_or(0, |row| row.get(0));
            let after = json!({
                "source": filter.source, "type": filter.event_type, "handler": filter.handler, "results": bound.results,
                "since": filter.since, "until": filter.until, "force": order.force, "verify_bytes": order.verify_bytes,
                "rate": rate, "anew": order.anew,
            });
            let (actor, reason) = (&order.actor, &order.reason);
            record(&transaction, bulk, "replay.bulk", actor, reason, &after).await?;
            Ok(bulk)
        }
        .await;
        transaction.end(started).await
    }

    /// Stops a bulk replay, lets it go on, or gives it up. A page that is being opened is waited for.
    /// To continue one that runs changes nothing and is audited all the same.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown number, [`StoreError::Refused`] for an empty reason or
    /// when its state does not allow it.
    pub async fn tell_bulk(
        &self,
        bulk: i64,
        word: BulkWord,
        reason: &str,
        actor: &str,
    ) -> Result<(), StoreError> {
        reasoned(reason)?;
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::ALONE).await?;
        let told = async {
            if switch(&transaction, bulk, word, reason, actor, None).await? {
                return Ok(());
            }
            let rows = transaction.query(LIST, &[&Some(bulk), &1_i64]).await?;
            let Some(row) = rows.first() else {
                return Err(unknown(bulk));
            };
            Err(StoreError::Refused(format!(
                "bulk {bulk} is {}",
                row.get::<_, &str>("state")
            )))
        }
        .await;
        transaction.end(told).await
    }

    /// A hundred bulk replays: what has not ended, then the newest.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn bulk_replays(&self) -> Result<Vec<BulkReplay>, StoreError> {
        let connection = self.queries().await?;
        let rows = connection
            .query_alone(LIST, &[&None::<i64>, &LIST_MAX])
            .await?;
        Ok(rows.iter().map(bulk_replay).collect())
    }

    /// One bulk replay.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown number; else when the database cannot be asked.
    pub async fn bulk_replay(&self, bulk: i64) -> Result<BulkReplay, StoreError> {
        let connection = self.queries().await?;
        let rows = connection.query_alone(LIST, &[&Some(bulk), &1_i64]).await?;
        rows.first().map(bulk_replay).ok_or_else(|| unknown(bulk))
    }

    /// One bulk replay, and who did what to it.
    ///
    /// # Errors
    ///
    /// As [`Store::bulk_replay`].
    pub async fn bulk_details(&self, bulk: i64) -> Result<BulkDetails, StoreError> {
        let now = self.bulk_replay(bulk).await?;
        let connection = self.queries().await?;
        let rows = connection
            .query_alone(HISTORY, &[&bulk.to_string()])
            .await?;
        let action = |row: &Row| BulkAction {
            at: time(row, "at"),
            what: row.get("what"),
            actor: row.get("actor"),
            reason: row.get("reason"),
        };
        Ok(BulkDetails {
            bulk: now,
            history: rows.iter().map(action).collect(),
        })
    }
}

fn unknown(bulk: i64) -> StoreError {
    StoreError::NotFound(format!("there is no bulk replay {bulk}"))
}

fn reasoned(reason: &str) -> Result<(), StoreError> {
    if reason.trim().is_empty() {
        return Err(StoreError::Refused(
            "a reason is required: it goes into the audit".into(),
        ));
    }
    Ok(())
}

/// Refuses what another one may mean too, or gives that one up.
async fn make_room(
    transaction: &Transaction<'_>,
    order: &BulkOrder,
    bound: &Bound,
) -> Result<(), StoreError> {
    let again = order.filter.results.contains(&Ending::Succeeded);
    let others = transaction
        .query(
            OVERLAP,
            &[
                &bound.source_id,
                &bound.event_type,
                &bound.handler_id,
                &bound.since,
                &bound.until,
                &again,
            ],
        )
        .await?;
    for row in others {
        let (bulk, open): (i64, bool) = (row.get("id"), row.get("open"));
        if !order.anew {
            return Err(StoreError::Refused(in_the_way(&row, bulk, open)));
        }
        if open {
            let (reason, actor) = (&order.reason, &order.actor);
            let instead = Some("another one is started in its place");
            switch(transaction, bulk, BulkWord::GiveUp, reason, actor, instead).await?;
        }
    }
    Ok(())
}

/// Why a new one is refused, and what can be done.
fn in_the_way(row: &Row, bulk: i64, open: bool) -> String {
    let (actor, replayed): (&str, i64) = (row.get("actor"), row.get("replayed"));
    if open {
        let state: &str = row.get("state");
        return format!(
            "bulk {bulk} by {actor} may mean the same runs and is not complete ({state}, {replayed} run again so far). Go on with it: \
             --continue {bulk}, or POST /v1/replays/{bulk}/continue. Or begin anew (--anew, or \"anew\": true), which gives it up"
        );
    }
    let minutes = row.get::<_, Option<f64>>("ended_s").map_or(0, |seconds| {
        Duration::from_secs_f64(seconds.max(0.0)).as_secs() / 60
    });
    format!(
        "bulk {bulk} by {actor} ran {replayed} of what may be the same runs again and ended {minutes} minutes ago: what succeeded \
         since would be run once more. Begin anew (--anew, or \"anew\": true) if that is meant"
    )
}

/// Says a word to a bulk replay and writes it into the audit; false if its state does not allow it.
async fn switch(
    transaction: &Transaction<'_>,
    bulk: i64,
    word: BulkWord,
    reason: &str,
    actor: &str,
    note: Option<&str>,
) -> Result<bool, StoreError> {
    let (before, state, action): (&[&str], _, _) = match word {
        BulkWord::Stop => (&["running"], "stopped", "replay.bulk.stop"),
        BulkWord::Continue => (&["stopped", "running"], "running", "replay.bulk.continue"),
        BulkWord::GiveUp => (&["running", "stopped"], "given_up", "replay.bulk.end"),
    };
    let rows = transaction.query(SWITCH, &[&bulk, &before, &state]).await?;
    let Some(row) = rows.first() else {
        return Ok(false);
    };
    let (replayed, refused): (i64, i64) = (row.get(0), row.get(1));
    let after = json!({ "state": state, "replayed": replayed, "refused": refused, "note": note });
    record(transaction, bulk, action, actor, reason, &after).await?;
    Ok(true)
}

async fn record(
    transaction: &Transaction<'_>,
    bulk: i64,
    action: &str,
    actor: &str,
    reason: &str,
    after: &serde_json::Value,
) -> Result<(), StoreError> {
    let subject = bulk.to_string();
    audit::record(
        transaction,
        actor,
        action,
        &subject,
        Some(reason),
        None,
        after,
    )
    .await
}

/// A filter as the database takes it.
struct Bound {
    source_id: Option<i32>,
    event_type: Option<String>,
    handler_id: Option<i32>,
    results: Vec<&'static str>,
    since: SystemTime,
    until: Option<SystemTime>,
}

impl Bound {
    async fn of(transaction: &Transaction<'_>, filter: &ReplayFilter) -> Result<Self, StoreError> {
        let rows = transaction
            .query(NAMES, &[&filter.source, &filter.handler])
            .await?;
        let id = |column, what, name: &Option<String>| match (
            rows.first().and_then(|row| row.get(column)),
            name,
        ) {
            (None, Some(name)) => Err(StoreError::NotFound(format!("there is no {what} {name:?}"))),
            (id, _) => Ok(id),
        };
        Ok(Self {
            source_id: id("source_id", "source", &filter.source)?,
            event_type: filter.event_type.clone(),
            handler_id: id("handler_id", "handler", &filter.handler)?,
            results: filter
                .results
                .iter()
                .map(|ending| ending.as_str())
                .collect(),
            since: moment(filter.since)?,
            until: filter.until.map(moment).transpose()?,
        })
    }
}

/// As the database takes it; before 1970 no event was received.
pub(super) fn moment(at: Timestamp) -> Result<SystemTime, StoreError> {
    SystemTime::try_from(at.max(Timestamp::UNIX_EPOCH))
        .map_err(|_| StoreError::Refused("that time lies outside what PostgreSQL can hold".into()))
}

fn bulk_replay(row: &Row) -> BulkReplay {
    let count = |column| row.get::<_, i64>(column).unsigned_abs();
    BulkReplay {
        bulk: row.get("id"),
        state: row.get("state"),
        replayed: count("replayed"),
        refused: count("refused"),
        refusals: serde_json::from_value(row.get("refusals")).unwrap_or_default(),
        reached: received(row.get("after_event")),
        source: row.get("source"),
        handler: row.get("handler"),
        event_type: row.get("type"),
        results: row.get("results"),
        since: time(row, "since"),
        until: time(row, "until"),
        force: row.get("force"),
        verify_bytes: row.get("verify_bytes"),
        rate: row.get::<_, i32>("rate").unsigned_abs(),
        reason: row.get("reason"),
        actor: row.get("actor"),
        started_at: time(row, "started_at"),
        ended_at: time_opt(row, "ended_at"),
    }
}

/// The time in an event's id.
pub(super) fn received(event: Uuid) -> Option<Timestamp> {
    let (seconds, nanos) = event.get_timestamp()?.to_unix();
    Timestamp::new(seconds.try_into().ok()?, nanos.try_into().ok()?).ok()
}
