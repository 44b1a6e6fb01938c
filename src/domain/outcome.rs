//! The single final row of (event, handler, run).

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The handler did its work.
    Succeeded,
    /// A final business "no".
    Failed,
    /// There was nothing to do, and the handler said why.
    Skipped,
    /// Retry budget spent, a permanent error, or poison: a dead letter.
    Dead,
    /// Ended by an operator, for example by retiring the handler.
    Cancelled,
}

impl Ending {
    /// The word used in tables and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// The ending of this word.
    pub fn named(word: &str) -> Option<Self> {
        [
            Self::Succeeded,
            Self::Failed,
            Self::Skipped,
            Self::Dead,
            Self::Cancelled,
        ]
        .into_iter()
        .find(|ending| ending.as_str() == word)
    }
}

/// Who decided an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecidedBy {
    /// The handler's own answer, or the engine on its behalf (budget, poison).
    Handler,
    /// The receiver, asked about a call whose result was not known.
    Probe,
    /// A person, with a reason in `audit`.
    Operator,
    /// A later event that named the effect key.
    Webhook,
}

impl DecidedBy {
    /// The word used in tables and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::Probe => "probe",
            Self::Operator => "operator",
            Self::Webhook => "webhook",
        }
    }
}
