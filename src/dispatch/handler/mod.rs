//! What reacts to an event.

mod answer;
mod elsewhere;
pub(super) mod error_text;
pub(super) mod external;
pub(super) mod function;
pub(super) mod http;
mod http_answer;
mod late;
pub(crate) mod rules;
mod sql;
pub(super) mod transactional;

use std::sync::Arc;
use std::time::Duration;

use crate::domain::{
    Cap, LaneBy, OnUnknown, Pattern, Policy, Priorities, ProbeSchedule, RetryPolicy, SecretText,
    VersionBy, operation::OperationSpec,
};

use crate::store::{Settings, StoreError, ledger};

use super::flow::BreakerPolicy;

pub use crate::store::{Emit, Work};
pub use external::External;
pub use function::{Answer, Delivered, Function, HandlerError};
pub use late::Settle;
pub use rules::SpecError;

/// Repetitions per hundred first tries of a handler that fails, unless said otherwise.
pub const RETRY_SHARE: u16 = 20;

/// A handler as configured.
#[derive(Debug, Clone)]
pub struct HandlerSpec {
    /// Its name.
    pub name: String,
    /// Former name, so that its deliveries and outcomes stay its own.
    pub was: Option<String>,
    /// Which events it takes.
    pub events: Vec<Pattern>,
    /// What it does.
    pub kind: HandlerKind,
    /// Which of its events wait for one another; `None`: none does.
    pub lane: Option<LaneBy>,
    /// Skips events that are older than what was applied to their object; read from where.
    pub apply_if_newer: Option<VersionBy>,
    /// Retry budget, crash cap, and what a lane does when its first event is dead.
    pub policy: Policy,
    /// Longest run of one delivery.
    pub timeout: Duration,
    /// How long a claim holds. For calls longer than `timeout`: so long a call may be under way.
    pub lease: Duration,
    /// Deliveries settled per transaction (transactional kinds), 1 to 1,000.
    pub batch: u16,
    /// Calls in flight per node (`http`, `external`).
    pub concurrency: u16,
    /// Which of its due deliveries are taken first.
    pub priorities: Priorities,
    /// What may be under way, and begun, over all nodes.
    pub cap: Cap,
    /// When its receiver is left alone for a while (`http`, `external`); `None`: never.
    pub breaker: Option<BreakerPolicy>,
    /// Repetitions per hundred first tries while it fails (`http`, `external`).
    pub retry_share: u16,
    /// When a receiver is asked about a call whose result is unknown.
    pub probes: ProbeSchedule,
    /// What it says to clients that wait for it; `None`: its events come from webhooks.
    pub operation: Option<OperationSpec>,
}

impl HandlerSpec {
    /// The handler of an operation of this name, with the defaults of [`HandlerSpec::new`]. The engine makes
    /// the operation's source, which has the same name, and sends its events to no other handler.
    pub fn operation(name: impl Into<String>, kind: HandlerKind, spec: OperationSpec) -> Self {
        Self {
            operation: Some(spec),
            ..Self::new(name, Vec::new(), kind)
        }
    }

    /// A handler with the default time-outs, batch and retry budget.
    pub fn new(name: impl Into<String>, events: Vec<Pattern>, kind: HandlerKind) -> Self {
        let timeout = Duration::from_secs(10);
        let lease = if kind.makes_calls() {
            timeout + rules::LEASE_BEYOND_TIMEOUT
        } else {
            Duration::from_secs(30)
        };
        let mut policy = Policy::default();
        if matches!(kind, HandlerKind::Settle(_)) {
            policy.not_yet = RetryPolicy::LATE;
        }
        Self {
            name: name.into(),
            was: None,
            events,
            kind,
            lane: None,
            apply_if_newer: None,
            policy,
            timeout,
            lease,
            batch: 50,
            concurrency: 16,
            priorities: Priorities::default(),
            cap: Cap::default(),
            breaker: Some(BreakerPolicy::default()),
            retry_share: RETRY_SHARE,
            probes: ProbeSchedule::default(),
            operation: None,
        }
    }
}

/// The kinds of handlers.
#[derive(Clone)]
pub enum HandlerKind {
    /// A SQL function in the engine's transaction.
    Sql {
        /// Qualified name of a function `(oncehook.delivered) returns void or jsonb`.
        call: String,
    },
    /// A SQL function in another database: there it takes effect once, by the ledger that
    /// [`ledger::install`] makes.
    SqlElsewhere {
        /// Qualified name of a function `(oncehook.delivered) returns void or jsonb`, there.
        call: String,
        /// How it is reached.
        database: Settings,
    },
    /// Your own code in the engine's transaction (crate users).
    Function(Arc<dyn Function>),
    /// A signed POST.
    Http(HttpTarget),
    /// Your own call to the outside (crate users).
    External(Arc<dyn External>),
    /// An event that says how a call of another handler ended.
    Settle(Settle),
}

impl HandlerKind {
    /// A SQL function in the database of this URL.
    ///
    /// # Errors
    ///
    /// [`StoreError::Url`]; the text never holds the URL, which may hold a password.
    pub fn sql_elsewhere(call: impl Into<String>, url: &str) -> Result<Self, StoreError> {
        Ok(Self::SqlElsewhere {
            call: call.into(),
            database: ledger::settings(url)?,
        })
    }

    /// What becomes of a try whose result is unknown.
    pub fn on_unknown(&self) -> OnUnknown {
        match self {
            // What was lost was rolled back; elsewhere the ledger knows, and is asked by running it again.
            Self::Sql { .. } | Self::Function(_) | Self::SqlElsewhere { .. } | Self::Settle(_) => {
                OnUnknown::Retry
            }
            Self::Http(target) => match target.on_unknown {
                HttpUnknown::Retry => OnUnknown::Retry,
                HttpUnknown::Probe(_) => OnUnknown::Probe,
                HttpUnknown::Hold => OnUnknown::Hold,
            },
            Self::External(_) => OnUnknown::Probe,
        }
    }
}

impl std::fmt::Debug for HandlerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sql { call } => f.debug_struct("Sql").field("call", call).finish(),
            Self::SqlElsewhere { call, database } => f
                .debug_struct("SqlElsewhere")
                .field("call", call)
                .field("database", &database.database())
                .finish(),
            Self::Function(_) => f.write_str("Function"),
            Self::Http(target) => f.debug_tuple("Http").field(target).finish(),
            Self::External(_) => f.write_str("External"),
            Self::Settle(settle) => f.debug_tuple("Settle").field(settle).finish(),
        }
    }
}

/// Where an `http` handler posts to.
#[derive(Debug, Clone)]
pub struct HttpTarget {
    /// URL.
    pub url: String,
    /// Signing secrets (label, `whsec_...`); every one signs, so that the receiver can rotate.
    pub secrets: Vec<(String, SecretText)>,
    /// What becomes of a call whose result is unknown.
    pub on_unknown: HttpUnknown,
}

/// What becomes of an `http` call whose result is unknown.
#[derive(Debug, Clone)]
pub enum HttpUnknown {
    /// It is sent again: the receiver honours `Idempotency-Key`.
    Retry,
    /// The receiver is asked whether it applied it.
    Probe(HttpProbe),
    /// A person decides.
    Hold,
}

/// How a receiver is asked about an effect key.
#[derive(Debug, Clone)]
pub struct HttpProbe {
    /// URL; `{effect_key}` stands for the key.
    pub url: String,
    /// POST in place of GET.
    pub post: bool,
    /// A 404 says that the key was not applied. Otherwise it says nothing: it may as well be a wrong
    /// address.
    pub not_found_is_absent: bool,
}
