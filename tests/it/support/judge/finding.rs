//! What the judge can say.

use std::fmt;

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finding {
    /// A sender was told 2xx, and the event is not there.
    AcknowledgedNotStored { key: String },
    /// Two answers for one key both said that it was new.
    TakenForNewTwice { key: String },
    /// A request with a wrong signature was told 2xx.
    ForgedAcknowledged { key: String },
    /// A conflict was told 2xx, and is not recorded.
    ConflictNotRecorded { key: String },
    /// A conflict is recorded that no sender sent.
    ConflictNeverSent { key: String },
    /// A key without exactly one event.
    StoredTwice { key: String, events: i64, keys: i64 },
    /// An event that no sender sent.
    StoredNeverSent { key: String },
    /// The stored content is not what was sent first.
    StoredOther { key: String },
    /// Work is left although all was said to be done.
    Unfinished { key: String, handler: String },
    /// A stored event that a handler takes ended nowhere.
    NoOutcome { key: String, handler: String },
    /// It ended, and not well.
    NotSucceeded {
        key: String,
        handler: String,
        result: String,
    },
    /// The outcome says succeeded, and nothing happened.
    OutcomeWithoutEffect { key: String, handler: String },
    /// Something happened, and there is no outcome.
    EffectWithoutOutcome { key: String, handler: String },
    /// An effect of an event that nobody sent.
    EffectNeverSent { key: String, handler: String },
    /// An effect that happened more than once.
    EffectTwice {
        key: String,
        handler: String,
        times: u32,
    },
    /// One event, two effect keys: the receiver could not tell that it is one effect.
    EffectKeyChanged { key: String, handler: String },
    /// The content of a conflict had an effect.
    ConflictProcessed { key: String, handler: String },
    /// An effect with an amount that nobody sent.
    WrongAmount { key: String, handler: String },
    /// A balance that is not the sum of what was sent.
    WrongBalance {
        account: i64,
        expected: i128,
        found: Option<i128>,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AcknowledgedNotStored { key } => {
                write!(f, "{key} was acknowledged and is not stored")
            }
            Self::TakenForNewTwice { key } => write!(f, "{key} was taken for new more than once"),
            Self::ForgedAcknowledged { key } => {
                write!(f, "{key} has a wrong signature and was acknowledged")
            }
            Self::ConflictNotRecorded { key } => {
                write!(
                    f,
                    "the conflict of {key} was acknowledged and is not recorded"
                )
            }
            Self::ConflictNeverSent { key } => {
                write!(f, "the conflict recorded for {key} was never sent")
            }
            Self::StoredTwice { key, events, keys } => {
                write!(f, "{key} has {keys} keys and {events} events")
            }
            Self::StoredNeverSent { key } => write!(f, "{key} is stored and was never sent"),
            Self::StoredOther { key } => write!(f, "{key} is stored with other content than sent"),
            Self::Unfinished { key, handler } => write!(f, "{key} is unfinished at {handler}"),
            Self::NoOutcome { key, handler } => write!(f, "{key} has no outcome at {handler}"),
            Self::NotSucceeded {
                key,
                handler,
                result,
            } => write!(f, "{key} ended as {result} at {handler}"),
            Self::OutcomeWithoutEffect { key, handler } => {
                write!(f, "{key} succeeded at {handler} without an effect")
            }
            Self::EffectWithoutOutcome { key, handler } => {
                write!(f, "{key} had an effect at {handler} and has no outcome")
            }
            Self::EffectNeverSent { key, handler } => {
                write!(f, "{key} had an effect at {handler} and was never sent")
            }
            Self::EffectTwice {
                key,
                handler,
                times,
            } => write!(f, "{key} had its effect at {handler} {times} times"),
            Self::EffectKeyChanged { key, handler } => {
                write!(f, "{key} came to {handler} under more than one effect key")
            }
            Self::ConflictProcessed { key, handler } => {
                write!(f, "the conflict of {key} was processed at {handler}")
            }
            Self::WrongAmount { key, handler } => {
                write!(
                    f,
                    "{key} had its effect at {handler} with an amount never sent"
                )
            }
            Self::WrongBalance {
                account,
                expected,
                found,
            } => write!(
                f,
                "account {account} holds {found:?}, but {expected} was sent to it"
            ),
        }
    }
}
