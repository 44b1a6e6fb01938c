//! Pure decisions: no I/O, no clock, no SQL. Time and randomness are arguments.

pub mod access;
pub mod delivery;
pub mod effect;
pub mod event;
pub mod fingerprint;
pub mod flow;
pub mod json;
pub mod lane;
pub mod late;
pub mod operation;
pub mod outcome;
pub mod refusal;
pub mod retry;
pub mod route;
pub mod secret;
pub mod uncertain;
pub mod version;

pub use access::{Caller, ClientName, Denied, Known, Role, Token, TokenHash};
pub use delivery::{Policy, Progress, Transition, Verdict};
pub use effect::EffectKey;
pub use event::{EventKey, EventState, Item, KeyError, Mode, Reading};
pub use fingerprint::Digest;
pub use flow::{ByPriority, Cap, Priorities, Priority, Rate};
pub use lane::{Lane, LaneBy, LaneError, LaneSource, OnDead, OnUncertain};
pub use outcome::{DecidedBy, Ending};
pub use refusal::Refusal;
pub use retry::RetryPolicy;
pub use route::{Pattern, PatternError, Route, Routes, Taking};
pub use secret::{Secret, SecretText};
pub use uncertain::{OnUnknown, ProbeSchedule, Probed, Standing, Step};
pub use version::{Version, VersionBy, VersionError};
