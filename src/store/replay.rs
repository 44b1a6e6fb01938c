//! New runs by command: explicit, reasoned, audited; never implicit.

use std::time::SystemTime;

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::operation::Response;
use crate::domain::{DecidedBy, EffectKey, Ending, Lane, LaneBy, LaneSource, OnUnknown};

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
const STORED: &str = include_str!("sql/replay_stored.sql");

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
        let held = transaction
            .query(HELD_LOCK, &[&found.event_id, &handler.registered.id])
            .await?;
        if let Some(row) = held.first() {
            let (run, generation): (i16, i16) = (row.get(0), row.get(1));
            let event = (found.event_id, run);
            held_may_begin_anew(transaction, request, &handler, event, &pair()).await?;
            let next = number_after(run, &pair())?;
            if stored_event(transaction, &[found.event_id])
                .await?
                .is_empty()
            {
                return Err(expired(&pair()));
            }
            begin_anew(transaction, &handler, found.event_id, run).await?;
            let opened = Opened {
                run: next,
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
        expected(request, last.get("run"))
            .map_err(|text| StoreError::Refused(format!("{}: {text}", pair())))?;
        let stored = stored_event(transaction, &[found.event_id]).await?.pop();
        let again = Again {
            force: request.force,
            may_repeat: may_repeat(handler.on_unknown.as_deref()),
            stored: stored.is_some(),
            pair: &pair(),
        };
        let (run, generation) = next_run(last, &again)?;
        let lane = stored.as_ref().and_then(|event| handler.lane(event));
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
            after: last.get("result"),
        };
        let replayed = record(transaction, request, found, &handler, &opened, bulk).await?;
        Ok((replayed, lane.map(|lane| handler.place(&lane))))
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

/// What is asked of a finished run.
struct Again<'a> {
    force: bool,
    /// A second call under one effect key is harmless.
    may_repeat: bool,
    /// Its payload is still there.
    stored: bool,
    /// Event and handler, for people.
    pair: &'a str,
}

/// Number and generation of the run after a finished one, or why there is none now. These rules stand here
/// only: for whoever orders a replay, and for whoever is told that one can be ordered.
fn next_run(last: &Row, again: &Again<'_>) -> Result<(i16, i16), StoreError> {
    let (run, generation, result): (i16, i16, &str) = (last.get(0), last.get(1), last.get(2));
    none_under_way(last, again.pair)?;
    if !again.force {
        none_applied(last, again)?;
    }
    if !again.stored {
        return Err(expired(again.pair));
    }
    let generation = if result == "succeeded" {
        generation.saturating_add(1)
    } else {
        generation
    };
    Ok((number_after(run, again.pair)?, generation))
}

/// The number of the run after this one.
pub(super) fn number_after(run: i16, pair: &str) -> Result<i16, StoreError> {
    run.checked_add(1).ok_or_else(|| {
        StoreError::Refused(format!(
            "{pair}: run {run} is the last there can be, it cannot run again"
        ))
    })
}

fn expired(pair: &str) -> StoreError {
    StoreError::PayloadExpired(format!(
        "{pair}: the payload was dropped, it cannot run again"
    ))
}

/// A finished run, and what is known of its handler.
#[derive(Debug)]
pub(super) struct Finished<'a> {
    pub(super) event_id: Uuid,
    pub(super) handler_id: i32,
    pub(super) handler: &'a str,
    pub(super) retired: bool,
    pub(super) on_unknown: Option<&'a str>,
    /// Its payload is still there.
    pub(super) stored: bool,
    /// Event and handler, for people.
    pub(super) pair: String,
}

/// Why a replay without force would be refused at this moment. `None`: it would open a run, unless one is live.
pub(super) async fn refusal(
    transaction: &Transaction<'_>,
    finished: &Finished<'_>,
) -> Result<Option<String>, StoreError> {
    if let Err(refused) = not_retired(finished.handler, finished.retired) {
        return Ok(Some(refused.to_string()));
    }
    let rows = transaction
        .query(LAST, &[&finished.event_id, &finished.handler_id])
        .await?;
    let again = Again {
        force: false,
        may_repeat: may_repeat(finished.on_unknown),
        stored: finished.stored,
        pair: &finished.pair,
    };
    let refused = rows.first().and_then(|last| next_run(last, &again).err());
    Ok(refused.map(|error| error.to_string()))
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
fn none_applied(last: &Row, again: &Again<'_>) -> Result<(), StoreError> {
    let pair = again.pair;
    let (run, result): (i16, &str) = (last.get("run"), last.get("result"));
    if result == "succeeded" {
        return Err(StoreError::Refused(format!(
            "{pair} has succeeded in run {run}; --force runs it again under a new effect key"
        )));
    }
    match last.get::<_, Option<SystemTime>>("answered") {
        Some(at) if !again.may_repeat => {
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

/// A handler that may get new runs.
pub(super) struct Handler {
    pub(super) registered: Registered,
    pub(super) lane_by: Option<LaneBy>,
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
    pub(super) id: Uuid,
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

/// Whether a second call under one effect key is harmless.
fn may_repeat(on_unknown: Option<&str>) -> bool {
    on_unknown == Some(OnUnknown::Retry.as_str())
}

fn not_retired(handler: &str, retired: bool) -> Result<(), StoreError> {
    if retired {
        return Err(StoreError::Refused(format!(
            "handler {handler:?} is retired"
        )));
    }
    Ok(())
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
    not_retired(handler, row.get(2))?;
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
