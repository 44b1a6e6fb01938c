//! Logs and metrics. No payload and no secret passes here, whatever the level.

mod clean;
#[cfg(feature = "cli")]
pub mod logs;
pub mod metrics;

pub use clean::clean;
#[cfg(feature = "cli")]
pub(crate) use clean::steers;
pub use metrics::{
    Gauges, accepted, attempt_failed, batch, commit_took, conflicts, duplicates, finished, gauges,
    lease_lost, probed, queue_depth, refusal_burst, refused, responded, unavailable, uncertain,
    unreadable,
};
