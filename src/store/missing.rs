//! First runs by command, for events that came before their handler.
//!
//! Page by page, each a transaction of its own that reads a bounded number of events, however few of them
//! fit: a handler that has all but the last event is no reason to read a month in one statement.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::{EffectKey, EventKey, Lane, Pattern};

use super::bulk::{moment, received};
use super::lanes::LaneOf;
use super::query::Replayed;
use super::replay::{Handler, handler_by_name, stored_event};
use super::transaction::{Limits, Transaction};
use super::{Store, StoreError, audit};

const REACH: &str = include_str!("sql/replay_missing_reach.sql");
const MISSING: &str = include_str!("sql/replay_missing.sql");
const INSERT: &str = include_str!("sql/replay_missing_insert.sql");
const FINISHED: &str = include_str!("sql/replay_missing_finished.sql");

/// Events read per page, however few of them fit.
const EVENTS_MAX: i64 = 2_000;
/// First runs per page.
const RUNS_MAX: i64 = 1_000;
/// Bodies in memory at once while lanes are read from them.
const BODIES: usize = 20;

/// First runs as asked for.
#[derive(Debug, Clone)]
pub struct MissingOrder {
    /// Handler name.
    pub handler: String,
    /// Which events it takes: the database does not know.
    pub patterns: Vec<Pattern>,
    /// Received since; a time before 1970 means all there are.
    pub since: Timestamp,
    /// Only looked for.
    pub dry_run: bool,
    /// Why; goes into `audit`.
    pub reason: String,
    /// Who; goes into `audit`.
    pub actor: String,
}

/// What one page of [`MissingOrder`] has brought.
#[derive(Debug, Clone)]
pub struct MissingPage {
    /// First runs that were made, or would be.
    pub replayed: Vec<Replayed>,
    /// Behind which event the next page begins; `None` after the last one.
    pub next: Option<Uuid>,
}

impl MissingPage {
    /// Until when, by their reception, events have been looked at; `None` after the last page.
    pub fn reached(&self) -> Option<Timestamp> {
        self.next.and_then(received)
    }
}

/// What a page has read.
struct Read {
    rows: Vec<Row>,
    next: Option<Uuid>,
}

impl Store {
    /// First runs for events received since `since` that match the handler's patterns and never
    /// had a delivery for it (the handler was added later). With `dry_run` only lists them.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown handler, [`StoreError::Refused`] for a retired one or an empty
    /// reason; what was made before an error stays.
    pub async fn replay_missing(
        &self,
        handler: &str,
        patterns: &[Pattern],
        since: Timestamp,
        dry_run: bool,
        reason: &str,
        actor: &str,
    ) -> Result<Vec<Replayed>, StoreError> {
        let order = MissingOrder {
            handler: handler.to_owned(),
            patterns: patterns.to_vec(),
            since,
            dry_run,
            reason: reason.to_owned(),
            actor: actor.to_owned(),
        };
        let mut replayed = Vec::new();
        let mut after = Uuid::nil();
        loop {
            let page = self.missing_page(&order, after).await?;
            replayed.extend(page.replayed);
            match page.next {
                Some(event) => after = event,
                None => return Ok(replayed),
            }
        }
    }

    /// The same, one page of events at a time: those behind `after`, which is the nil id at first.
    ///
    /// # Errors
    ///
    /// As [`Store::replay_missing`]; nothing of this page was made then, or all of it.
    pub async fn missing_page(
        &self,
        order: &MissingOrder,
        after: Uuid,
    ) -> Result<MissingPage, StoreError> {
        if order.reason.trim().is_empty() && !order.dry_run {
            return Err(StoreError::Refused(
                "a reason is required: it goes into the audit".into(),
            ));
        }
        let since = moment(order.since)?;
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let mut lanes = Vec::new();
        let page = async {
            let handler = handler_by_name(&transaction, &order.handler).await?;
            let read = read(&transaction, handler.registered.id, since, after).await?;
            let matching: Vec<&Row> = read
                .rows
                .iter()
                .filter(|row| {
                    let event_type: Option<&str> = row.get(4);
                    order
                        .patterns
                        .iter()
                        .any(|p| p.takes(row.get(1), event_type))
                })
                .collect();
            let ids: Vec<Uuid> = matching.iter().map(|row| row.get(0)).collect();
            let made = if order.dry_run {
                ids.iter().copied().collect()
            } else {
                first_runs(&transaction, &handler, &ids, &mut lanes).await?
            };
            let mut replayed = Vec::new();
            for row in matching
                .into_iter()
                .filter(|row| made.contains(&row.get(0)))
            {
                if !order.dry_run {
                    record(&transaction, order, row.get(0)).await?;
                }
                replayed.push(first_run(&handler, &order.handler, row)?);
            }
            Ok(MissingPage {
                replayed,
                next: read.next,
            })
        }
        .await;
        let ended = transaction.end(page).await;
        drop(connection);
        self.look_at(&lanes).await;
        ended
    }
}

/// What the handler has not had among the next events.
async fn read(
    transaction: &Transaction<'_>,
    handler_id: i32,
    since: SystemTime,
    after: Uuid,
) -> Result<Read, StoreError> {
    let before_last = EVENTS_MAX - 1;
    let reach = transaction
        .query(REACH, &[&after, &since, &before_last])
        .await?;
    let reach: Option<Uuid> = reach.first().map(|row| row.get(0));
    let rows = transaction
        .query(MISSING, &[&handler_id, &since, &after, &RUNS_MAX, &reach])
        .await?;
    let is_full = rows.len() as u64 >= RUNS_MAX.unsigned_abs();
    let next = match rows.last() {
        Some(last) if is_full => Some(last.get(0)),
        _ => reach,
    };
    Ok(Read { rows, next })
}

/// Writes the audit of one first run.
async fn record(
    transaction: &Transaction<'_>,
    order: &MissingOrder,
    event_id: Uuid,
) -> Result<(), StoreError> {
    audit::record(
        transaction,
        &order.actor,
        "event.replay.missing",
        &event_id.to_string(),
        Some(&order.reason),
        None,
        &serde_json::json!({ "handler": order.handler, "run": 1 }),
    )
    .await
}

fn first_run(handler: &Handler, name: &str, row: &Row) -> Result<Replayed, StoreError> {
    let (source, first): (&str, &str) = (row.get(1), row.get(2));
    let key = EventKey::stored(row.get::<_, &str>(3))
        .map_err(|error| StoreError::NotFound(error.to_string()))?;
    let effect_key = EffectKey::derive(first, &key, &handler.registered.first_name, 0);
    Ok(Replayed {
        source: source.to_owned(),
        effect_key: effect_key.as_str().to_owned(),
        key: key.as_str().to_owned(),
        handler: name.to_owned(),
        run: 1,
    })
}

/// Opens first runs; those finished by another meanwhile are taken back.
async fn first_runs(
    transaction: &Transaction<'_>,
    handler: &Handler,
    events: &[Uuid],
    lanes: &mut Vec<LaneOf>,
) -> Result<HashSet<Uuid>, StoreError> {
    let handler_id = handler.registered.id;
    let mut lane_of: HashMap<Uuid, Lane> = HashMap::new();
    if handler.lane_by.is_some() {
        for some in events.chunks(BODIES) {
            let stored = stored_event(transaction, some).await?;
            lane_of.extend(
                stored
                    .iter()
                    .filter_map(|event| Some((event.id, handler.lane(event)?))),
            );
        }
    }
    let lane_names: Vec<Option<&str>> = events
        .iter()
        .map(|id| lane_of.get(id).map(Lane::as_str))
        .collect();
    lanes.extend(lane_of.values().map(|lane| handler.place(lane)));
    let ids = |rows: Vec<Row>| rows.iter().map(|row| row.get(0)).collect();
    let mut made: HashSet<Uuid> = ids(transaction
        .query(INSERT, &[&handler_id, &events, &lane_names])
        .await?);
    let opened: Vec<Uuid> = made.iter().copied().collect();
    let finished: HashSet<Uuid> = ids(transaction.query(FINISHED, &[&handler_id, &opened]).await?);
    made.retain(|id| !finished.contains(id));
    Ok(made)
}
