//! New runs by command: explicit, reasoned, audited; never implicit.

use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::time::SystemTime;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::operation::Response;
use crate::domain::{
    DecidedBy, EffectKey, Ending, EventKey, Lane, LaneBy, LaneSource, OnUnknown, Pattern,
};

use super::again::{self, LATER_INTENT};
use super::lanes::LaneOf;
use super::query::Replayed;
use super::registry::Registered;
use super::response::{self, NewResponse};
use super::transaction::{Limits, Transaction};
use super::uncertain::{self, Live};
use super::{Store, StoreError, audit};

pub(super) const OPEN: &str = include_str!("sql/replay_open.sql");
const HELD_LOCK: &str = include_str!("sql/replay_held_lock.sql");
const HELD: &str = include_str!("sql/replay_held.sql");
pub(super) const LAST: &str = include_str!("sql/replay_last.sql");
pub(super) const ARM: &str = include_str!("sql/replay_arm.sql");
const MISSING: &str = include_str!("sql/replay_missing.sql");
const MISSING_FINISHED: &str = include_str!("sql/replay_missing_finished.sql");
const STORED: &str = include_str!("sql/replay_stored.sql");
const MISSING_INSERT: &str = include_str!("sql/replay_missing_insert.sql");

/// Events looked at per transaction of [`Store::replay_missing`].
const PAGE: i64 = 1_000;

/// Bodies in memory at once while lanes are read from them.
const BODIES: usize = 20;

/// One replay as asked for.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    /// Source name.
    pub source: String,
    /// Event key, or the provider's id when unambiguous.
    pub key: String,
    /// Handler name.
    pub handler: String,
    /// Run again what has succeeded: new generation, new effect key.
    pub force: bool,
    /// Refuse unless the last finished run has this number.
    pub expected_run: Option<i16>,
    /// Why; goes into `audit`.
    pub reason: String,
    /// Who; goes into `audit`.
    pub actor: String,
}

impl Store {
    /// Opens a new run of one finished (event, handler).
    ///
    /// A delivery that its lane waits for (held) begins a new run in its place.
    ///
    /// A dead or failed run keeps its effect key, so that a receiver that honours it applies the
    /// effect once. A succeeded one is run again only with `force`, under a new effect key.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown event, handler or a pair that never ran;
    /// [`StoreError::Refused`] while it is live, when it succeeded or a late answer of its call is kept that says so,
    /// and `force` is not set, when the handler is retired, or when the last run is not the expected one;
    /// [`StoreError::CallUnderWay`] while a call whose result was never known may be.
    pub async fn replay(&self, request: &ReplayRequest) -> Result<Replayed, StoreError> {
        if request.reason.trim().is_empty() {
            return Err(StoreError::Refused(
                "a reason is required: it goes into the audit".into(),
            ));
        }
        let found = self.find(&request.source, &request.key).await?;
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let done = self.replay_in(&transaction, request, &found, None).await;
        let lane = done.as_ref().ok().and_then(|(_, lane)| lane.clone());
        let ended = transaction.end(done).await;
        drop(connection);
        // Whichever way it ended: a COMMIT whose answer was lost may have gone through.
        self.look_at(lane.as_slice()).await;
        ended.map(|(replayed, _)| replayed)
    }

    /// Lets the lanes of new runs go on. What fails here is left to the nodes, which look through
    /// the lanes at intervals.
    pub(super) async fn look_at(&self, lanes: &[LaneOf]) {
        let looked = self.promote_heads(lanes).await;
        if let Some(error) = looked.error {
            tracing::warn!(error = %error, lanes = looked.left.len(), "lanes of new runs not looked at: the nodes find them");
        }
    }

    /// `bulk`: the bulk replay that it is part of.
    pub(super) async fn replay_in(
        &self,
        transaction: &Transaction<'_>,
        request: &ReplayRequest,
        found: &super::query::Found,
        bulk: Option<i64>,
    ) -> Result<(Replayed, Option<LaneOf>), StoreError> {
        let handler = handler_by_name(transaction, &request.handler).await?;
        let pair = || {
            format!(
                "event {} of {} and handler {}",
                found.key, request.source, request.handler
            )
        };
        if handler.operation.is_some()
            && again::hold_key(transaction, found.event_id)
                .await?
                .is_none()
        {
            return Err(StoreError::Refused(format!("{}: {LATER_INTENT}", pair())));
        }
        let expired = || {
            let text = "the payload was dropped, it cannot run again";
            StoreError::PayloadExpired(format!("{}: {text}", pair()))
        };
        let held = transaction
            .query(HELD_LOCK, &[&found.event_id, &handler.registered.id])
            .await?;
        if let Some(row) = held.first() {
            let (run, generation): (i16, i16) = (row.get(0), row.get(1));
            let event = (found.event_id, run);
            held_may_begin_anew(transaction, request, &handler, event, &pair()).await?;
            if stored_event(transaction, &[found.event_id])
                .await?
                .is_empty()
            {
                return Err(expired());
            }
            begin_anew(transaction, &handler, found.event_id, run).await?;
            let opened = Opened {
                run: run.saturating_add(1),
                generation,
                after: "held",
            };
            let replayed = record(transaction, request, found, &handler, &opened, bulk).await?;
            return Ok((replayed, None));
        }
        if transaction
            .execute(OPEN, &[&found.event_id, &handler.registered.id])
            .await?
            == 0
        {
            let live = uncertain::look(transaction, found.event_id, handler.registered.id).await?;
            return Err(StoreError::Refused(format!(
                "{} {}",
                pair(),
                why_live(live)
            )));
        }
        let rows = transaction
            .query(LAST, &[&found.event_id, &handler.registered.id])
            .await?;
        let Some(last) = rows.first() else {
            return Err(StoreError::NotFound(format!(
                "{} never ran; `replay --missing --handler {}` makes first runs",
                pair(),
                request.handler
            )));
        };
        let (run, generation, result): (i16, i16, &str) = (last.get(0), last.get(1), last.get(2));
        expected(request, run)
            .map_err(|text| StoreError::Refused(format!("{}: {text}", pair())))?;
        none_under_way(last, &pair())?;
        if !request.force {
            none_applied(last, &handler, &pair())?;
        }
        let Some(stored) = stored_event(transaction, &[found.event_id]).await?.pop() else {
            return Err(expired());
        };
        let lane = handler.lane(&stored);
        let generation = if result == "succeeded" {
            generation.saturating_add(1)
        } else {
            generation
        };
        let run = run.checked_add(1).ok_or_else(|| {
            StoreError::Refused(format!("{}: run {run} is the last there can be", pair()))
        })?;
        let armed = transaction
            .execute(
                ARM,
                &[
                    &found.event_id,
                    &handler.registered.id,
                    &run,
                    &generation,
                    &lane.as_ref().map(Lane::as_str),
                ],
            )
            .await?;
        super::transaction::expect_rows("replay_arm", armed, 1)?;
        let opened = Opened {
            run,
            generation,
            after: result,
        };
        let replayed = record(transaction, request, found, &handler, &opened, bulk).await?;
        Ok((replayed, lane.map(|lane| handler.place(&lane))))
    }

    /// First runs for events received since `since` that match the handler's patterns and never
    /// had a delivery for it (the handler was added later). With `dry_run` only lists them.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown handler; what was made before an error stays.
    pub async fn replay_missing(
        &self,
        handler: &str,
        patterns: &[Pattern],
        since: Timestamp,
        dry_run: bool,
        reason: &str,
        actor: &str,
    ) -> Result<Vec<Replayed>, StoreError> {
        if reason.trim().is_empty() && !dry_run {
            return Err(StoreError::Refused(
                "a reason is required: it goes into the audit".into(),
            ));
        }
        let since = SystemTime::try_from(since).map_err(|_| {
            StoreError::Refused("that time lies outside what PostgreSQL can hold".into())
        })?;
        let mut after = Uuid::nil();
        let mut replayed = Vec::new();
        loop {
            let connection = self.admin().await?;
            let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
            let mut lanes = Vec::new();
            let page = async {
                let handler_row = handler_by_name(&transaction, handler).await?;
                let rows = transaction
                    .query(
                        MISSING,
                        &[&handler_row.registered.id, &since, &after, &PAGE],
                    )
                    .await?;
                let matching: Vec<_> = rows
                    .iter()
                    .filter(|row| {
                        let event_type: Option<&str> = row.get(4);
                        patterns.iter().any(|p| p.takes(row.get(1), event_type))
                    })
                    .collect();
                let ids: Vec<Uuid> = matching.iter().map(|row| row.get(0)).collect();
                let made = if dry_run {
                    ids.iter().copied().collect()
                } else {
                    first_runs(&transaction, &handler_row, &ids, &mut lanes).await?
                };
                let mut listed = Vec::new();
                for row in matching
                    .into_iter()
                    .filter(|row| made.contains(&row.get(0)))
                {
                    let (id, source, first): (Uuid, &str, &str) =
                        (row.get(0), row.get(1), row.get(2));
                    let key = EventKey::stored(row.get::<_, &str>(3))
                        .map_err(|e| StoreError::NotFound(e.to_string()))?;
                    if !dry_run {
                        audit::record(
                            &transaction,
                            actor,
                            "event.replay.missing",
                            &id.to_string(),
                            Some(reason),
                            None,
                            &serde_json::json!({ "handler": handler, "run": 1 }),
                        )
                        .await?;
                    }
                    listed.push(Replayed {
                        source: source.to_owned(),
                        effect_key: EffectKey::derive(
                            first,
                            &key,
                            &handler_row.registered.first_name,
                            0,
                        )
                        .as_str()
                        .to_owned(),
                        key: key.as_str().to_owned(),
                        handler: handler.to_owned(),
                        run: 1,
                    });
                }
                Ok((listed, rows.last().map(|row| row.get::<_, Uuid>(0))))
            }
            .await;
            let ended = transaction.end(page).await;
            drop(connection);
            self.look_at(&lanes).await;
            let (listed, last) = ended?;
            replayed.extend(listed);
            match last {
                Some(id) => after = id,
                None => return Ok(replayed),
            }
        }
    }
}

/// A run that was opened.
struct Opened<'r> {
    run: i16,
    generation: i16,
    /// How the one before it ended.
    after: &'r str,
}

/// Whether the last run is the one that is expected, if any is.
fn expected(request: &ReplayRequest, run: i16) -> Result<(), String> {
    if request.expected_run.is_some_and(|expected| expected != run) {
        return Err(format!("the last run is {run}, not the expected one"));
    }
    Ok(())
}

/// Refuses while a call of which nobody knows how it ended may be under way.
fn none_under_way(last: &Row, pair: &str) -> Result<(), StoreError> {
    let Some(at) = last.get::<_, Option<SystemTime>>("under_way") else {
        return Ok(());
    };
    // Beyond what a moment can be is later than any.
    let until = Timestamp::try_from(at).unwrap_or(Timestamp::MAX);
    let text = format!(
        "{pair}: its call may still be under way until {until}; sent again now, it could be applied twice. Replay it after that"
    );
    Err(StoreError::CallUnderWay { text, until })
}

/// Refuses what has succeeded, and what a late answer says was done, whatever a person had made of it before.
fn none_applied(last: &Row, handler: &Handler, pair: &str) -> Result<(), StoreError> {
    let (run, result): (i16, &str) = (last.get("run"), last.get("result"));
    if result == "succeeded" {
        return Err(StoreError::Refused(format!(
            "{pair} has succeeded in run {run}; --force runs it again under a new effect key"
        )));
    }
    match last.get::<_, Option<SystemTime>>("answered") {
        Some(at) if !handler.may_repeat() => {
            let since = Timestamp::try_from(at).unwrap_or(Timestamp::MAX);
            Err(StoreError::Refused(format!(
                "{pair}: its call was answered late, succeeded, which is kept since {since}: the effect is there. \
                 --force sends it again, under the same effect key"
            )))
        }
        _ => Ok(()),
    }
}

/// Writes the audit of a run that was opened.
async fn record(
    transaction: &Transaction<'_>,
    request: &ReplayRequest,
    found: &super::query::Found,
    handler: &Handler,
    opened: &Opened<'_>,
    bulk: Option<i64>,
) -> Result<Replayed, StoreError> {
    let Opened {
        run,
        generation,
        after,
    } = *opened;
    let effect_key = EffectKey::derive(
        &found.source_first_name,
        &found.key,
        &handler.registered.first_name,
        generation,
    );
    audit::record(
        transaction,
        &request.actor,
        if request.force { "event.replay.force" } else { "event.replay" },
        &found.event_id.to_string(),
        Some(&request.reason),
        None,
        &serde_json::json!({ "handler": request.handler, "run": run, "after": after, "effect_key": effect_key.as_str(), "bulk": bulk }),
    )
    .await?;
    Ok(Replayed {
        source: request.source.clone(),
        key: found.key.as_str().to_owned(),
        handler: request.handler.clone(),
        run,
        effect_key: effect_key.as_str().to_owned(),
    })
}

/// Ends the run of a held delivery as the dead letter that it is and begins the next in its place; the
/// row must be locked and held.
pub(super) async fn begin_anew(
    transaction: &Transaction<'_>,
    handler: &Handler,
    event_id: Uuid,
    run: i16,
) -> Result<(), StoreError> {
    let handler_id = handler.registered.id;
    let begun = transaction.execute(HELD, &[&event_id, &handler_id]).await?;
    super::transaction::expect_rows("replay_held", begun, 1)?;
    let Some(response) = handler.made_up(Ending::Dead, DecidedBy::Handler, None, None) else {
        return Ok(());
    };
    let answer = NewResponse {
        event_id,
        handler_id,
        run,
        response: &response,
    };
    response::write(transaction, &[answer]).await
}

/// Whether a held delivery may begin anew: its run is the expected one, and, unless by force, none of its calls
/// turned out to have been applied.
async fn held_may_begin_anew(
    transaction: &Transaction<'_>,
    request: &ReplayRequest,
    handler: &Handler,
    (event_id, run): (Uuid, i16),
    pair: &str,
) -> Result<(), StoreError> {
    expected(request, run).map_err(|text| StoreError::Refused(format!("{pair}: {text}")))?;
    let id = handler.registered.id;
    let kept = uncertain::evidence(transaction, event_id, id, run, None).await?;
    let Some(kept) = kept.filter(|_| !request.force) else {
        return Ok(());
    };
    let since = kept
        .at
        .map_or_else(String::new, |at| format!(", which is kept since {at}"));
    Err(StoreError::Refused(format!(
        "{pair}: its call was answered late, {}{since}: say `oncehook resolve --as succeeded`",
        kept.answer
    )))
}

/// Why a live delivery is not replayed.
fn why_live(live: Option<Live>) -> &'static str {
    if live.is_some_and(|live| live.is_uncertain()) {
        "is uncertain: say what became of its call, see `oncehook resolve`"
    } else {
        "is still live: it runs by itself, nothing to replay"
    }
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
        .query(MISSING_INSERT, &[&handler_id, &events, &lane_names])
        .await?);
    let opened: Vec<Uuid> = made.iter().copied().collect();
    let finished: HashSet<Uuid> = ids(transaction
        .query(MISSING_FINISHED, &[&handler_id, &opened])
        .await?);
    made.retain(|id| !finished.contains(id));
    Ok(made)
}

/// A handler that may get new runs.
pub(super) struct Handler {
    pub(super) registered: Registered,
    lane_by: Option<LaneBy>,
    /// `retry`, `probe` or `hold`; `None` where no node of this version has registered it.
    pub(super) on_unknown: Option<String>,
    /// Its name, if it serves the operation of that name.
    operation: Option<String>,
}

impl Handler {
    /// What the clients of its operation are answered without the backend's own bytes.
    pub(super) fn made_up(
        &self,
        ending: Ending,
        by: DecidedBy,
        resource: Option<&str>,
        external_id: Option<&str>,
    ) -> Option<Response> {
        let operation = self.operation.as_deref()?;
        Some(Response::made_up(
            operation,
            ending,
            by,
            resource,
            external_id,
        ))
    }

    /// Whether a second call under one effect key is harmless.
    fn may_repeat(&self) -> bool {
        self.on_unknown.as_deref() == Some(OnUnknown::Retry.as_str())
    }

    pub(super) fn lane(&self, event: &StoredEvent) -> Option<Lane> {
        self.lane_by.as_ref()?.lane(LaneSource {
            entity: event.entity.as_deref(),
            account: event.account.as_deref(),
            body: &event.body,
        })
    }

    pub(super) fn place(&self, lane: &Lane) -> LaneOf {
        (self.registered.id, lane.as_str().to_owned())
    }
}

/// What of a stored event its lane may be read from.
pub(super) struct StoredEvent {
    id: Uuid,
    entity: Option<String>,
    account: Option<String>,
    body: Vec<u8>,
}

/// Those of the events whose payload is still there.
pub(super) async fn stored_event(
    transaction: &Transaction<'_>,
    events: &[Uuid],
) -> Result<Vec<StoredEvent>, StoreError> {
    let rows = transaction.query(STORED, &[&events]).await?;
    let stored = |row: &tokio_postgres::Row| StoredEvent {
        id: row.get(0),
        entity: row.get(1),
        account: row.get(2),
        body: row.get(3),
    };
    Ok(rows.iter().map(stored).collect())
}

pub(super) async fn handler_by_name(
    transaction: &Transaction<'_>,
    handler: &str,
) -> Result<Handler, StoreError> {
    let rows = transaction
        .query(
            "SELECT id, first_name, retired_at IS NOT NULL, lane_by, on_unknown, CASE WHEN operation_of IS NOT NULL THEN name END FROM oncehook.handler WHERE name = $1 FOR SHARE",
            &[&handler],
        )
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| StoreError::NotFound(format!("there is no handler {handler:?}")))?;
    if row.get(2) {
        return Err(StoreError::Refused(format!(
            "handler {handler:?} is retired"
        )));
    }
    let lane_by = row.get::<_, Option<&str>>(3);
    Ok(Handler {
        registered: Registered {
            id: row.get(0),
            first_name: row.get(1),
        },
        // Written by a newer version, perhaps; its nodes name the lanes then.
        lane_by: lane_by.and_then(|text| LaneBy::parse(text).ok()),
        on_unknown: row.get(4),
        operation: row.get(5),
    })
}
