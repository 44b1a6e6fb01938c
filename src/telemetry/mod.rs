//! Logs and metrics. No payload and no secret passes here, whatever the level.

mod clean;
#[cfg(feature = "cli")]
pub mod logs;
pub mod metrics;
pub mod operations;
mod zero;

pub use clean::clean;
pub(crate) use clean::clean_resource;
#[cfg(feature = "cli")]
pub(crate) use clean::steers;
pub use metrics::{
    Gauges, accepted, api_refused, attempt_failed, batch, breaker, breaker_opened, capped,
    commit_took, conflicts, duplicates, finished, gauges, handler_paused, held, lanes_mended,
    lease_lost, probed, queue_depth, refusal_burst, refused, responded, retries_deferred,
    source_paused, unavailable, uncertain, unreadable,
};
pub use operations::{
    OperationGauges, operation_answered, operation_conflict, operation_gauges, operations_waiting,
};
pub use zero::{at_zero, operation_at_zero};
