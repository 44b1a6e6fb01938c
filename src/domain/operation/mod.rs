//! Operations: events whose key a client chose and whose outcome it waits for.
//!
//! An operation is a source of the preset `operation` and a handler of the same name. Its key in
//! `event_key` is `client:key`, so the same text of two clients, or of two operations, is two intents.

mod key;
mod prefer;
mod response;
mod table;

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::{DecidedBy, Ending, EventKey};

pub use key::{IdempotencyKey, KeyFault, safe_key};
pub use prefer::{Patience, Preferences};
pub use response::{BODY_MAX, HEADERS, Response, ResponseFault, Told, may_be_listed};
pub use table::{Action, Asked, Saying, Seen, decide};

/// What an operation's configuration says beyond that of its handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationSpec {
    /// JSON Pointers (RFC 6901) of members in which honest retries may differ.
    pub volatile: Vec<String>,
    /// How long a request waits for the outcome when it does not say (`Prefer: wait=n`, RFC 7240).
    pub wait: Duration,
    /// Longest wait that a request may ask for.
    pub wait_max: Duration,
    /// Which status codes stand for other content and for work under way.
    pub profile: Profile,
    /// What a retry meets after a failure without any effect.
    pub on_failure: OnFailure,
    /// Headers stored and replayed beside Content-Type, Location, `ETag` and Link; lower case.
    pub headers: Vec<String>,
    /// How long a key names its first intent, from when it was first seen; `None`: for ever.
    pub keep_key: Option<Duration>,
    /// How long its stored response is replayed, from the outcome on; `None`: as long as the key.
    pub keep_response: Option<Duration>,
}

impl Default for OperationSpec {
    /// Waits 5 s, 60 at most; keeps the key for 30 days and the answer as long.
    fn default() -> Self {
        Self {
            volatile: Vec::new(),
            wait: Duration::from_secs(5),
            wait_max: Duration::from_mins(1),
            profile: Profile::default(),
            on_failure: OnFailure::default(),
            headers: Vec::new(),
            keep_key: Some(Duration::from_hours(24 * 30)),
            keep_response: None,
        }
    }
}

/// How the contract speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Other content: 409. Under way: 202 with a place to ask.
    #[default]
    Standard,
    /// draft-ietf-httpapi-idempotency-key-header-07, section 2.7: other content 422, under way 409.
    Ietf,
}

/// What a retry meets after a failure that left no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The work begins again, under the same effect key.
    #[default]
    Release,
    /// The stored failure, again and again; a correction needs a new key.
    Keep,
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Its outcome is not there yet.
    Processing,
    /// A call was perhaps made; its result is looked for.
    Uncertain,
    /// It ended with an answer of the business, yes or no.
    Completed,
    /// It ended without one: a dead letter, or cancelled by a person.
    Failed,
}

impl State {
    /// The state of this word.
    pub fn named(word: &str) -> Option<Self> {
        [
            Self::Processing,
            Self::Uncertain,
            Self::Completed,
            Self::Failed,
        ]
        .into_iter()
        .find(|state| state.as_str() == word)
    }

    /// The word used in answers and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Uncertain => "uncertain",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// How its last run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub ending: Ending,
    /// Who decided.
    pub decided_by: DecidedBy,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Why, for people.
    pub reason: Option<String>,
    /// Whether a late answer says that a call of it took effect after all: it is never begun again.
    pub evidence_of_effect: bool,
}

/// What is left of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// No run has ended with one.
    Nothing,
    /// To be replayed byte by byte.
    Kept(Response),
    /// Its horizon has passed, by the database's clock, whether or not its bytes are still there.
    Purged,
}

/// An operation as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The event.
    pub id: Uuid,
    /// Its present run, from 1 on.
    pub run: i16,
    /// Where it stands.
    pub state: State,
    /// How its last run ended, if it has.
    pub ended: Option<Ended>,
    /// Its answer.
    pub stored: Stored,
    /// Tries recorded so far.
    pub attempts: u32,
    /// What the handler made, in its own words.
    pub resource: Option<String>,
    /// The id that the outside world gave it.
    pub external_id: Option<String>,
    /// Of the request that brought it.
    pub correlation_id: Uuid,
    /// When its key was reserved.
    pub created_at: Timestamp,
    /// When it last changed, as far as rows tell.
    pub updated_at: Timestamp,
    /// When its key may name another intent; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// When somebody looks next: the next try, or the next probe. `None`: nobody will by himself.
    pub next_check_at: Option<Timestamp>,
}

/// One of a list of operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The operation's name.
    pub operation: String,
    /// `client:key`.
    pub key: EventKey,
    /// As it is stored, without the bytes of its answer: [`Stored::Nothing`] whether there is one or not.
    pub record: Record,
}

#[cfg(test)]
impl Record {
    /// One that has just begun.
    pub(crate) fn sample(id: Uuid) -> Self {
        Self {
            id,
            run: 1,
            state: State::Processing,
            ended: None,
            stored: Stored::Nothing,
            attempts: 0,
            resource: None,
            external_id: None,
            correlation_id: Uuid::nil(),
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
            expires_at: None,
            next_check_at: None,
        }
    }
}
