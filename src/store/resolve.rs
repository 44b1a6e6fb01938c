//! A person's decision about a call whose result is not known, or about a held delivery: reasoned, audited, never implicit.

use std::iter;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use crate::domain::{DecidedBy, EffectKey, Ending, OnUnknown};
use crate::telemetry::{clean, clean_resource};

use super::lanes::LaneOf;
use super::query::{Found, Resolved};
use super::replay::{self, Handler, handler_by_name};
use super::transaction::{Limits, Transaction};
use super::uncertain::{self, Decided, Evidence, Live};
use super::{Store, StoreError, audit};

const LANE_HEAD: &str = include_str!("sql/lane_head.sql");

/// What a person decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resolution {
    /// The effect is there.
    Succeeded,
    /// It was refused for good.
    Failed,
    /// It was not applied: it is tried again under the same effect key.
    Retry,
    /// It is given up: a dead letter.
    Dead,
    /// It is not known here either: the receiver is asked again.
    Probe,
}

impl Resolution {
    /// Every one of them.
    pub const ALL: [Self; 5] = [
        Self::Succeeded,
        Self::Failed,
        Self::Retry,
        Self::Dead,
        Self::Probe,
    ];

    /// The word used on the command line, in the API and in the audit.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Retry => "retry",
            Self::Dead => "dead",
            Self::Probe => "probe",
        }
    }

    /// The one of that name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }

    fn ending(self) -> Option<Ending> {
        match self {
            Self::Succeeded => Some(Ending::Succeeded),
            Self::Failed => Some(Ending::Failed),
            Self::Dead => Some(Ending::Dead),
            Self::Retry | Self::Probe => None,
        }
    }
}

/// One decision as given.
#[derive(Debug, Clone)]
pub struct ResolveRequest {
    /// Source name.
    pub source: String,
    /// Event key, or the provider's id when unambiguous.
    pub key: String,
    /// Handler name.
    pub handler: String,
    /// What is decided.
    pub resolution: Resolution,
    /// Why; goes into the outcome and `audit`.
    pub reason: String,
    /// Where it was seen, such as the receiver's id of the payment; goes into `audit`.
    pub evidence: Option<String>,
    /// Who; goes into `audit`.
    pub actor: String,
}

impl Store {
    /// Ends one uncertain or held delivery by a person's word, or has it tried again, or its receiver asked.
    ///
    /// A retry of an uncertain one is the same run. That of a held one is the next: the run that could
    /// not succeed is a dead letter, and its lane waits for the new one. To have the receiver of an uncertain one
    /// asked runs the schedule of probes anew, from now on, and decides nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown event or handler; [`StoreError::Refused`] when the
    /// delivery is neither uncertain nor held, when a late answer of its call is kept that says otherwise, and for
    /// `probe` when the handler's receiver cannot be asked; [`StoreError::CallUnderWay`] for `retry` while the call
    /// may be. Nothing has changed then.
    pub async fn resolve(&self, request: &ResolveRequest) -> Result<Resolved, StoreError> {
        if request.reason.trim().is_empty() {
            return Err(StoreError::Refused(
                "a reason is required: it goes into the audit".into(),
            ));
        }
        let mut texts = iter::once(&request.reason).chain(&request.evidence);
        if texts.any(|text| text.contains('\0')) {
            return Err(StoreError::Refused(
                "reason and evidence may hold any character but NUL, which PostgreSQL does not store".into(),
            ));
        }
        let found = self.find(&request.source, &request.key).await?;
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let done = resolve_in(&transaction, request, &found).await;
        let lane = done.as_ref().ok().and_then(|(_, lane)| lane.clone());
        let ended = transaction.end(done).await;
        drop(connection);
        // Whichever way it ended: a COMMIT whose answer was lost may have gone through.
        self.look_at(lane.as_slice()).await;
        ended.map(|(resolved, _)| resolved)
    }
}

async fn resolve_in(
    transaction: &Transaction<'_>,
    request: &ResolveRequest,
    found: &Found,
) -> Result<(Resolved, Option<LaneOf>), StoreError> {
    let known = handler_by_name(transaction, &request.handler).await?;
    let handler = &known.registered;
    let pair = format!(
        "event {} of {} and handler {}",
        found.key, request.source, request.handler
    );
    let of_pair = |why: &str| format!("{pair}: {why}");
    let refused = |why: String| Err(StoreError::Refused(of_pair(&why)));
    let Some(live) = uncertain::look(transaction, found.event_id, handler.id).await? else {
        return refused(
            "nothing is open. A finished run is run again by `replay`, which keeps the effect key unless it succeeded".into(),
        );
    };
    if !live.is_uncertain() && !live.is_held() {
        return refused(match &live.lane {
            Some(lane) if live.state == "blocked" => behind(transaction, handler.id, lane).await?,
            _ => not_open_to_decision(&live),
        });
    }
    let effect_key = EffectKey::derive(
        &found.source_first_name,
        &found.key,
        &handler.first_name,
        live.generation,
    );
    let id = (found.event_id, handler.id, live.run);
    // Of a held one, whose calls have all been answered: what came later still and says that it was done.
    let call = live.call_token;
    let kept = uncertain::evidence(transaction, found.event_id, handler.id, live.run, call).await?;
    if let Some(kept) = &kept
        && let Some(why) = contradicts(request.resolution, kept)
    {
        let nodes = if live.is_uncertain() {
            ", or leave it to the nodes, which end it by that answer"
        } else {
            ""
        };
        return refused(format!("{why}{nodes}"));
    }
    let mut new_run = None;
    match request.resolution.ending() {
        Some(ending) => {
            let row = (found.event_id, handler.id, &live);
            finish(transaction, request, &known, row, ending, kept.as_ref()).await?;
        }
        None if request.resolution == Resolution::Probe => {
            if let Some(why) = not_to_be_asked(&live, known.on_unknown.as_deref()) {
                return refused(why);
            }
            uncertain::ask(transaction, id).await?;
        }
        None if live.is_held() => {
            let next = replay::number_after(live.run, &pair)?;
            replay::begin_anew(transaction, &known, found.event_id, live.run).await?;
            new_run = Some(next);
        }
        None => {
            // Its own guard, in the statement: the clock that counts is the database's.
            if !uncertain::release(transaction, id, None).await? {
                let until = live.in_flight_until.unwrap_or(Timestamp::MAX);
                return Err(StoreError::CallUnderWay {
                    text: of_pair(&format!(
                        "the call may still be under way until {until}; sent again now, it could be applied twice. \
                         Say `retry` after that, or what you know: succeeded, failed or dead"
                    )),
                    until,
                });
            }
        }
    }
    record(transaction, request, (found, &live), &effect_key, new_run).await?;
    let resolved = Resolved {
        source: request.source.clone(),
        key: found.key.as_str().to_owned(),
        handler: request.handler.clone(),
        run: live.run,
        resolved_as: request.resolution.as_str(),
        new_run,
        effect_key: effect_key.as_str().to_owned(),
    };
    Ok((resolved, live.lane.map(|lane| (handler.id, lane))))
}

/// Ends it as the person says. What the receiver has answered late is kept with it, if it says the same.
async fn finish(
    transaction: &Transaction<'_>,
    request: &ResolveRequest,
    known: &Handler,
    row: (Uuid, i32, &Live),
    ending: Ending,
    kept: Option<&Evidence>,
) -> Result<(), StoreError> {
    let said = request.evidence.as_deref().map(clean_resource);
    let resource = match ending {
        Ending::Succeeded => kept
            .and_then(|kept| kept.resource.as_deref())
            .or(said.as_deref()),
        _ => None,
    };
    let by = DecidedBy::Operator;
    // The receiver's own words, if they say the same.
    let told = kept.filter(|kept| kept.answer == ending.as_str());
    let told = told.map(|kept| &kept.told);
    let external_id = told.and_then(|told| told.external_id.as_deref());
    let made_up = known.made_up(ending, by, resource, external_id);
    let response = made_up.as_ref().map(|made_up| {
        let received = told.and_then(|told| told.response.as_ref());
        received.unwrap_or(made_up)
    });
    let decided = Decided {
        ending,
        by,
        reason: Some(&request.reason),
        resource,
        external_id,
        response,
    };
    uncertain::finish(transaction, row, &decided).await
}

/// Writes the audit, with what was known before.
async fn record(
    transaction: &Transaction<'_>,
    request: &ResolveRequest,
    (found, live): (&Found, &Live),
    effect_key: &EffectKey,
    new_run: Option<i16>,
) -> Result<(), StoreError> {
    let mut after = json!({
        "handler": request.handler, "run": live.run, "as": request.resolution.as_str(),
        "evidence": request.evidence,
    });
    if let (Some(run), Some(after)) = (new_run, after.as_object_mut()) {
        after.insert("new_run".to_owned(), run.into());
    }
    audit::record(
        transaction,
        &request.actor,
        "event.resolve",
        &found.event_id.to_string(),
        Some(&request.reason),
        Some(&json!({
            "handler": request.handler, "run": live.run, "state": live.state, "probes": live.probes,
            "uncertain_at": live.uncertain_at, "in_flight_until": live.in_flight_until,
            "effect_key": effect_key.as_str(),
        })),
        &after,
    )
    .await
}

/// Why a late answer that is kept forbids the decision, and what to say in its place. What is there is not
/// sent again and not given up; what was refused is not there.
fn contradicts(resolution: Resolution, kept: &Evidence) -> Option<String> {
    let instead = match (kept.answer.as_str(), resolution) {
        ("succeeded", Resolution::Succeeded) => return None,
        ("succeeded", _) => "say `succeeded`",
        (_, Resolution::Succeeded) => "say `failed` or `dead`, or `retry` to have it sent again",
        _ => return None,
    };
    let made = match &kept.resource {
        Some(resource) => format!(" ({resource})"),
        None => String::new(),
    };
    Some(format!(
        "its call was answered late, {}{made}, which is kept since {}: {instead}",
        kept.answer,
        moment(kept.at)
    ))
}

/// Why a receiver is not asked about a delivery, and what to do in place of that.
fn not_to_be_asked(live: &Live, on_unknown: Option<&str>) -> Option<String> {
    if live.is_held() {
        return Some("it is held, and what became of its calls is known: say `retry` once the cause is mended, or succeeded, failed or dead".to_owned());
    }
    if on_unknown == Some(OnUnknown::Probe.as_str()) {
        return None;
    }
    Some(format!(
        "its receiver cannot be asked, on_unknown is {:?}: give the handler a `probe` first, or find out yourself \
         and say succeeded, failed, retry or dead",
        on_unknown.unwrap_or("not registered")
    ))
}

/// Why nothing is decided about what waits in its lane, for whom it waits, and what to do.
async fn behind(
    transaction: &Transaction<'_>,
    handler_id: i32,
    lane: &str,
) -> Result<String, StoreError> {
    let rows = transaction.query(LANE_HEAD, &[&handler_id, &lane]).await?;
    let Some(head) = rows.first() else {
        return Ok(
            "it is blocked, and its lane goes on by itself: there is nothing to decide".into(),
        );
    };
    let (source, key, state): (&str, &str, &str) = (head.get(0), head.get(1), head.get(2));
    let next = match state {
        "held" | "uncertain" => "decide about that one first: its lane goes on then",
        _ => "there is nothing to decide: it comes when that one has ended",
    };
    Ok(format!(
        "it is blocked: it waits in its lane behind event {} of {}, which is {state}; {next}",
        clean(key),
        clean(source)
    ))
}

/// What to do in place of a decision.
fn not_open_to_decision(live: &Live) -> String {
    if live.state == "leased" {
        format!(
            "it is being handled, at the latest until {}; there is nothing to decide yet",
            moment(live.lease_until)
        )
    } else {
        format!(
            "it is {} and runs by itself, due {}; only a delivery whose call has an unknown result, or that is held, is decided by a person",
            live.state,
            moment(live.run_at)
        )
    }
}

fn moment(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "some later time".to_owned(), |at| at.to_string())
}
