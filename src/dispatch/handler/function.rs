//! The `function` kind: your own code in the engine's transaction.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use jiff::Timestamp;
use uuid::Uuid;

use crate::domain::operation::{BODY_MAX, Response, ResponseFault, Told};
use crate::domain::{Probed, Verdict};
use crate::store::delivery::{Lease, LeasedEvent};
use crate::store::locked;
use crate::store::transaction::Transaction;
use crate::store::{
    StoreError, Work,
    handling::{self, Part, Payload},
};
use crate::telemetry::{clean, clean_resource};

use super::super::{ActiveHandler, Context};
use super::error_text;
use super::transactional::{BUDGET, Ran, RunError};

/// An event as a handler sees it.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// oncehook's id.
    pub id: Uuid,
    /// Source name.
    pub source: String,
    /// Event key.
    pub key: String,
    /// Provider's event type.
    pub event_type: Option<String>,
    /// Business object.
    pub entity: Option<String>,
    /// When it happened, by the provider's clock.
    pub occurred_at: Option<Timestamp>,
    /// When it was received, by the database's clock.
    pub received_at: Timestamp,
    /// The content type that it came with.
    pub content_type: Option<String>,
    /// The exact bytes of the event's item.
    pub body: Arc<[u8]>,
    /// The stable id of this effect: send it with anything that leaves the database.
    pub effect_key: String,
    /// Run, from 1; replays count up.
    pub run: i16,
    /// Try within the run, from 1.
    pub attempt: i32,
    /// Id of the request that brought it, as in the log.
    pub correlation_id: Uuid,
}

/// What a function answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The work is done; what was written through [`Work`] commits together with the outcome.
    Done,
    /// Done, and what it made: an id, not more. Control characters are escaped, it is cut at 1,000 characters.
    DoneWith(String),
    /// A final business "no"; what was written commits.
    Failed(String),
    /// There was nothing to do, and why.
    Skip(String),
    /// Not done; what was written rolls back. Tried again after the schedule's delay, or after
    /// this one if longer.
    Retry(Option<Duration>, String),
    /// What the event is about is not there yet; what was written rolls back. Tried again like
    /// `Retry`, under a budget of its own, and behind the next event of its lane.
    NotYet(Option<Duration>, String),
    /// No later try can succeed; what was written rolls back, the event becomes a dead letter.
    Permanent(String),
    /// Another answer, and what the client of an operation is told beside it; see [`Answer::with_response`].
    Telling(Box<Answer>, Told),
}

impl Answer {
    /// With the response that the client of an operation gets, now and at every retry. It is stored with the
    /// outcome of `Done`, `DoneWith`, `Failed` and `Skip`; with any other answer, and of a handler that serves no
    /// operation, it is left out.
    #[must_use]
    pub fn with_response(self, response: Response) -> Self {
        let (answer, told) = self.split();
        let response = Some(response);
        Self::Telling(Box::new(answer), Told { response, ..told })
    }

    /// With the id that the outside world gave it: of an operation, part of its record.
    #[must_use]
    pub fn with_external_id(self, id: impl Into<String>) -> Self {
        let (answer, told) = self.split();
        let external_id = Some(id.into());
        Self::Telling(
            Box::new(answer),
            Told {
                external_id,
                ..told
            },
        )
    }

    /// The answer itself, and what is told beside it.
    pub(in crate::dispatch) fn split(mut self) -> (Self, Told) {
        let mut told = Told::default();
        while let Self::Telling(answer, beside) = self {
            told = told.or(beside);
            self = *answer;
        }
        (self, told)
    }
}

/// Any error: what was written rolls back and the event is tried again.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// A handler of your own inside the engine's transaction.
///
/// What it writes through [`Work`] commits together with the event's outcome, or not at all: that
/// is exactly once. What it does outside (a call, a file) is not covered; that is for
/// [`External`](super::External) and `http` handlers.
#[async_trait]
pub trait Function: Send + Sync + 'static {
    /// Handles one event.
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError>;
}

/// Runs the function over locked leases, each in a savepoint.
pub(super) async fn run(
    context: &Context,
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    function: &dyn Function,
    leases: &[&Lease],
    xact: &str,
) -> Result<Vec<Ran>, RunError> {
    let began = Instant::now();
    let mut part = Part {
        payloads: HashMap::new(),
        read: 0,
    };
    let mut read = 0;
    let mut ran = Vec::with_capacity(leases.len());
    let mut response_bytes = 0;
    for (index, lease) in leases.iter().enumerate() {
        // Responses are kept in memory until the batch is written.
        if (began.elapsed() > BUDGET || response_bytes > BODY_MAX) && index > 0 {
            ran.push(Ran::NotRun);
            continue;
        }
        if index >= read {
            let rest = leases.iter().skip(index).map(|l| l.event_id);
            let rest: Vec<Uuid> = rest.collect();
            part = handling::payloads_within(transaction, &rest).await?;
            read = index + part.read;
        }
        let payload = part.payloads.remove(&lease.event_id);
        let (Some(stored), Some(payload)) = (&lease.event, payload) else {
            ran.push(Ran::of(Verdict::payload_expired()));
            continue;
        };
        let Some(event) = delivered(context, handler, lease, stored, payload) else {
            ran.push(Ran::of(Verdict::source_unknown()));
            continue;
        };
        let among_others = leases.len() > 1;
        let done = one(
            transaction,
            handler,
            function,
            &event,
            xact,
            index,
            among_others,
        )
        .await?;
        response_bytes += done.response_bytes();
        ran.push(done);
    }
    Ok(ran)
}

/// One event in its savepoint.
pub(super) async fn one(
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    function: &dyn Function,
    event: &Delivered,
    xact: &str,
    index: usize,
    among_others: bool,
) -> Result<Ran, RunError> {
    transaction.savepoint().await?;
    let work = Work::new(transaction);
    let answered = AssertUnwindSafe(function.handle(event, &work)).catch_unwind();
    let answered = tokio::time::timeout(handler.spec.timeout, answered)
        .await
        .map_err(|_| RunError::TimedOut)?;
    let mut told = Told::default();
    let verdict = match answered {
        Ok(Ok(answer)) => {
            let (verdict, beside) = verdict(answer);
            match checked(handler, beside) {
                Ok(beside) => {
                    told = beside;
                    verdict
                }
                // In the savepoint: the effect of what cannot be stored is undone.
                Err(fault) => Verdict::Permanent {
                    error: fault.to_string(),
                },
            }
        }
        Ok(Err(error)) => {
            batch_error(error.as_ref())?;
            if among_others && is_constraint(error.as_ref()) {
                rollback(transaction, xact, index).await?;
                return Ok(Ran::Confirm);
            }
            Verdict::Retry {
                after: None,
                error: error_text::of_error(error.as_ref()),
            }
        }
        Err(_) => Verdict::Retry {
            after: None,
            error: "the handler panicked".to_owned(),
        },
    };
    let keeps_writes = matches!(
        verdict,
        Verdict::Done { .. } | Verdict::Failed { .. } | Verdict::Skip { .. }
    );
    if !keeps_writes {
        rollback(transaction, xact, index).await?;
        return Ok(Ran::Verdict(verdict, Told::default()));
    }
    if let Err(error) = transaction.check_constraints().await {
        // A deferred constraint, or an error the handler swallowed: the savepoint is lost.
        batch_error(&error)?;
        rollback(transaction, xact, index).await?;
        if among_others && error.code().is_some_and(|c| c.code().starts_with("23")) {
            return Ok(Ran::Confirm);
        }
        let verdict = Verdict::Retry {
            after: None,
            error: error_text::of_error(&error),
        };
        return Ok(Ran::Verdict(verdict, Told::default()));
    }
    if locked::current_xact(transaction).await? != xact {
        return Err(RunError::EndedTransaction(index));
    }
    transaction.release().await?;
    Ok(Ran::Verdict(verdict, told))
}

/// Back to before the handler; a savepoint that is gone means the handler ended the transaction.
async fn rollback(transaction: &Transaction<'_>, xact: &str, index: usize) -> Result<(), RunError> {
    match transaction.back_to_savepoint().await {
        Ok(()) if locked::current_xact(transaction).await? == xact => Ok(()),
        Ok(()) => Err(RunError::EndedTransaction(index)),
        // 3B001: no such savepoint; 25P01: no transaction.
        Err(error)
            if error
                .code()
                .is_some_and(|c| matches!(c.code(), "3B001" | "25P01")) =>
        {
            Err(RunError::EndedTransaction(index))
        }
        Err(error) => Err(RunError::Store(error.into())),
    }
}

/// Errors that end the whole batch: deadlock, serialization failure, lock time-out, cancellation,
/// a lost connection.
fn batch_error(error: &(dyn std::error::Error + 'static)) -> Result<(), RunError> {
    let Some(database) = error_text::cause::<tokio_postgres::Error>(error) else {
        return Ok(());
    };
    let code = database.code().map(|c| c.code().to_owned());
    let whole = match code.as_deref() {
        None => database.is_closed(),
        Some(code) => {
            code.starts_with("40")
                || matches!(code, "55P03" | "57014" | "57P01" | "57P02" | "57P03")
        }
    };
    if !whole {
        return Ok(());
    }
    // The original error belongs to the handler; its code decides what happens to the batch.
    Err(RunError::Store(match code.as_deref() {
        Some(code) if code.starts_with("40") || matches!(code, "55P03" | "57014") => {
            StoreError::BatchCancelled(code.to_owned())
        }
        _ => StoreError::Unavailable("the connection was lost inside the handler".to_owned()),
    }))
}

fn is_constraint(error: &(dyn std::error::Error + 'static)) -> bool {
    error_text::cause::<tokio_postgres::Error>(error)
        .and_then(tokio_postgres::Error::code)
        .is_some_and(|code| code.code().starts_with("23"))
}

/// What is told to the client of an operation, as it is stored; nothing where there is none.
fn checked(handler: &ActiveHandler, told: Told) -> Result<Told, ResponseFault> {
    let Some(spec) = &handler.spec.operation else {
        return Ok(Told::default());
    };
    let response = told.response.map(|given| given.checked(&spec.headers));
    Ok(Told {
        response: response.transpose()?,
        ..told
    })
}

pub(super) fn verdict(answer: Answer) -> (Verdict, Told) {
    let text = |text: String| clean(&error_text::mask(&text)).into_owned();
    let (answer, told) = answer.split();
    let verdict = match answer {
        // `split` has taken away what is told beside an answer.
        Answer::Done | Answer::Telling(..) => Verdict::Done { resource: None },
        Answer::DoneWith(resource) => Verdict::Done {
            resource: Some(clean_resource(&resource).into_owned()),
        },
        Answer::Failed(reason) => Verdict::Failed {
            reason: text(reason),
        },
        Answer::Skip(reason) => Verdict::Skip {
            reason: text(reason),
        },
        Answer::Retry(after, error) => Verdict::Retry {
            after,
            error: text(error),
        },
        Answer::NotYet(after, reason) => Verdict::NotYet {
            after,
            reason: text(reason),
        },
        Answer::Permanent(error) => Verdict::Permanent { error: text(error) },
    };
    (verdict, cleaned_told(told))
}

fn cleaned_told(told: Told) -> Told {
    let external_id = told.external_id;
    Told {
        external_id: external_id.map(|id| clean_resource(&id).into_owned()),
        ..told
    }
}

/// What a probe found, with its texts as they are kept.
pub(super) fn cleaned(found: Probed) -> (Probed, Told) {
    let (found, told) = found.split();
    (texts_cleaned(found), cleaned_told(told))
}

fn texts_cleaned(found: Probed) -> Probed {
    let text = |text: String| clean(&error_text::mask(&text)).into_owned();
    match found {
        Probed::Refused { reason } => Probed::Refused {
            reason: text(reason),
        },
        Probed::Unknown { why } => Probed::Unknown { why: text(why) },
        Probed::Applied { resource } => Probed::Applied {
            resource: resource.map(|text| clean_resource(&text).into_owned()),
        },
        Probed::Absent | Probed::Telling(..) => Probed::Absent,
    }
}

/// The event as a handler sees it; `None` when its source is not known.
pub(in crate::dispatch) fn delivered(
    context: &Context,
    handler: &ActiveHandler,
    lease: &Lease,
    event: &LeasedEvent,
    payload: Payload,
) -> Option<Delivered> {
    let (source, effect_key) = context.registry.identify(lease, event, handler)?;
    Some(Delivered {
        id: lease.event_id,
        source,
        key: event.key.as_str().to_owned(),
        event_type: event.event_type.clone(),
        entity: event.entity.clone(),
        occurred_at: event.occurred_at,
        received_at: payload.received_at,
        content_type: payload.content_type(),
        body: payload.body.into(),
        effect_key: effect_key.as_str().to_owned(),
        run: lease.run,
        attempt: lease.attempt(),
        correlation_id: event.correlation_id,
    })
}
