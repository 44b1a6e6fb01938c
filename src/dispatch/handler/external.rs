//! Calls to the outside: the `external` kind, and what the engine makes of one.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use crate::domain::operation::{Response, Told};
use crate::domain::{Probed, Verdict};
use crate::store::transaction::Transaction;
use crate::store::{StoreError, Work};

use super::super::{ActiveHandler, Outside};
use super::elsewhere;
use super::error_text;
use super::function::{self, Answer, Delivered, Function, HandlerError};
use super::transactional::{Ran, RunError};

/// A call of your own to something outside the database, in three parts.
///
/// The engine never repeats a call whose result is not known: it asks [`External::probe`], and sends
/// again only when that says [`Probed::Absent`] at a time when the call can no longer be under way.
/// Every part is given the effect key, which is the same at every try of a run: send it along, and ask
/// for it.
///
/// An error, a panic or a run longer than the handler's `timeout` in [`External::call`] means that the
/// result is unknown. Where you know that nothing was done, say so: `Ok(Answer::Retry(..))`.
#[async_trait]
pub trait External: Send + Sync + 'static {
    /// Makes the call. No transaction is open.
    async fn call(&self, effect_key: &str, event: &Delivered) -> Result<Answer, HandlerError>;

    /// Writes to your tables what the call did, in the transaction that records the outcome. Run
    /// where the call, a late answer of it or a probe ended it, with [`Answer::Done`],
    /// [`Answer::DoneWith`], [`Answer::Failed`] or [`Answer::Skip`]; not where a person did.
    ///
    /// An error leaves the result unknown: the call is not repeated, the probe is asked, and this is
    /// run again.
    async fn settle(
        &self,
        event: &Delivered,
        answer: &Answer,
        work: &Work<'_>,
    ) -> Result<(), HandlerError> {
        let _ = (event, answer, work);
        Ok(())
    }

    /// The response that the client of an operation gets, where only the settling knows it: an id of your own
    /// tables, say. Run behind [`External::settle`], in its transaction. `None`: the one that the call or the probe
    /// came with.
    ///
    /// An error is one of `settle`.
    async fn respond(
        &self,
        event: &Delivered,
        answer: &Answer,
        work: &Work<'_>,
    ) -> Result<Option<Response>, HandlerError> {
        let _ = (event, answer, work);
        Ok(None)
    }

    /// Asks whether the effect key was applied. No transaction is open; two nodes may ask at once.
    /// An error means that it cannot tell.
    async fn probe(&self, effect_key: &str, event: &Delivered) -> Result<Probed, HandlerError>;
}

/// The result of a call is not known, and how long the receiver wants to be left alone.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct Unknown {
    pub(super) after: Option<Duration>,
    pub(super) error: String,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) verdict: Verdict,
    /// Whether the receiver answered as one that works; `None` when nothing was sent.
    pub(crate) works: Option<bool>,
    /// What the client of an operation is told.
    pub(crate) told: Told,
}

impl Sent {
    /// With nothing to tell, and nothing known of the receiver.
    pub(super) fn of(verdict: Verdict) -> Self {
        Self {
            verdict,
            works: None,
            told: Told::default(),
        }
    }
}

/// The answer to a call, and whether its receiver works.
pub(super) type Answered = (Result<Answer, HandlerError>, Option<bool>);

/// Makes the call and tells what is known of its result. One without a result says of the receiver
/// that it does not work.
pub(crate) async fn call(handler: &ActiveHandler, outside: &Outside, event: &Delivered) -> Sent {
    let timeout = match outside {
        Outside::Http(_) | Outside::Code(_) => handler.spec.timeout,
        Outside::Sql(_) => handler.spec.timeout + elsewhere::BEYOND_TIMEOUT,
    };
    let unknown = |error: String| Sent {
        works: Some(false),
        ..Sent::of(Verdict::Unknown { after: None, error })
    };
    let sent = AssertUnwindSafe(sent(handler, outside, event)).catch_unwind();
    match tokio::time::timeout(timeout, sent).await {
        Ok(Ok(sent)) => sent,
        Ok(Err(_)) => unknown("the handler panicked: result unknown".to_owned()),
        Err(_) => unknown(format!("no answer within {timeout:?}: result unknown")),
    }
}

async fn sent(handler: &ActiveHandler, outside: &Outside, event: &Delivered) -> Sent {
    let (answer, works) = match outside {
        Outside::Http(calls) => calls.send(event).await,
        Outside::Code(code) => {
            let answer = code.call(&event.effect_key, event).await;
            let works = !matches!(answer, Err(_) | Ok(Answer::Retry(..)));
            (answer, Some(works))
        }
        Outside::Sql(other) => return elsewhere::call(other, handler, event).await,
    };
    let (verdict, told) = match answer {
        Ok(answer) => function::verdict(answer),
        Err(error) => {
            let after = error_text::cause::<Unknown>(error.as_ref()).and_then(|u| u.after);
            let error = error_text::of_error(error.as_ref());
            (Verdict::Unknown { after, error }, Told::default())
        }
    };
    Sent {
        verdict,
        works,
        told,
    }
}

/// Asks about the call; whatever is no answer is "cannot tell". With what the client of an operation is told.
pub(crate) async fn probe(
    handler: &ActiveHandler,
    outside: &Outside,
    event: &Delivered,
) -> (Probed, Told) {
    let timeout = handler.spec.timeout;
    let asked = async {
        match outside {
            Outside::Http(calls) => calls.probe(event).await,
            Outside::Code(code) => code.probe(&event.effect_key, event).await,
            Outside::Sql(_) => Err("its ledger is asked by running it again".into()),
        }
    };
    let asked = AssertUnwindSafe(asked).catch_unwind();
    let why = match tokio::time::timeout(timeout, asked).await {
        Ok(Ok(Ok(found))) => return function::cleaned(found),
        Ok(Ok(Err(error))) => error_text::of_error(error.as_ref()),
        Ok(Err(_)) => "the probe panicked".to_owned(),
        Err(_) => format!("no answer to the probe within {timeout:?}"),
    };
    (Probed::Unknown { why }, Told::default())
}

/// The end of a call as a function of the settle transaction.
struct Settling {
    code: Arc<dyn External>,
    answer: Answer,
    /// The headers that an operation lists; `None`: it serves none.
    headers: Option<Vec<String>>,
}

#[async_trait]
impl Function for Settling {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        self.code.settle(event, &self.answer, work).await?;
        let response = match &self.headers {
            Some(_) => self.code.respond(event, &self.answer, work).await?,
            None => None,
        };
        // The call was made: what it did is not undone for an answer that cannot be stored.
        let headers = self.headers.as_deref().unwrap_or_default();
        Ok(match response.map(|response| response.fitted(headers)) {
            Some(response) => self.answer.clone().with_response(response),
            None => self.answer.clone(),
        })
    }
}

/// Why the end of a call could not be settled.
#[derive(Debug)]
pub(crate) enum NotSettled {
    /// The database; worth another try.
    Store(StoreError),
    /// `settle` failed: nothing of it stays, and the transaction can be used.
    Undone(String),
    /// `settle` ended the transaction or still runs in it: it is dropped with its connection.
    Broken(String),
}

impl From<StoreError> for NotSettled {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Runs [`External::settle`] in a savepoint of the transaction that writes the outcome; what it tells the client
/// of an operation.
pub(crate) async fn settle(
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    code: &Arc<dyn External>,
    event: &Delivered,
    answer: Answer,
    xact: &str,
) -> Result<Told, NotSettled> {
    let settling = Settling {
        code: Arc::clone(code),
        answer,
        headers: handler
            .spec
            .operation
            .as_ref()
            .map(|spec| spec.headers.clone()),
    };
    match function::one(transaction, handler, &settling, event, xact, 0, false).await {
        Ok(Ran::Verdict(Verdict::Retry { error, .. }, _)) => Err(NotSettled::Undone(format!(
            "the call was made and could not be settled: {error}"
        ))),
        Ok(Ran::Verdict(_, told)) => Ok(told),
        Ok(Ran::Confirm | Ran::NotRun) => Ok(Told::default()),
        Err(RunError::Store(error)) => Err(NotSettled::Store(error)),
        Err(RunError::EndedTransaction(_)) => {
            tracing::error!(handler = %handler.spec.name, "settle ended the engine's transaction: what it committed cannot be taken back");
            Err(NotSettled::Broken(
                "the call was made, and settle ended the engine's transaction".to_owned(),
            ))
        }
        Err(RunError::TimedOut) => Err(NotSettled::Broken(format!(
            "the call was made, and settle took longer than {:?}",
            handler.spec.timeout
        ))),
    }
}

/// The final answer that a verdict stands for; `None` where nothing is settled.
pub(crate) fn answer_of(verdict: &Verdict) -> Option<Answer> {
    match verdict {
        Verdict::Done { resource } => Some(match resource {
            None => Answer::Done,
            Some(resource) => Answer::DoneWith(resource.clone()),
        }),
        Verdict::Failed { reason } => Some(Answer::Failed(reason.clone())),
        Verdict::Skip { reason } => Some(Answer::Skip(reason.clone())),
        Verdict::Retry { .. }
        | Verdict::NotYet { .. }
        | Verdict::Permanent { .. }
        | Verdict::Unknown { .. }
        | Verdict::Lost { .. } => None,
    }
}
