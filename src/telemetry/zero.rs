//! Counters at 0 before their first event.
//!
//! A counter that appears with its first event is 1 when it is first seen, and `increase()` over it
//! is 0: the first conflict, dead letter or 503 would raise no alert.

use metrics::counter;

use crate::domain::{Denied, Ending};

use super::{metrics as names, operations};

/// Why a webhook is answered 503.
const UNAVAILABLE: [&str; 4] = ["database", "too_slow", "queue_full", "shutting_down"];
const ENDINGS: [Ending; 5] = [
    Ending::Succeeded,
    Ending::Failed,
    Ending::Skipped,
    Ending::Dead,
    Ending::Cancelled,
];

/// Has the counters of these sources and handlers, and those of the node, on the page. What has
/// counted already keeps its number.
pub fn at_zero<'a>(
    sources: impl IntoIterator<Item = &'a str>,
    handlers: impl IntoIterator<Item = &'a str>,
) {
    counter!(names::LANES_MENDED).increment(0);
    let denied = Denied::ALL.map(Denied::code);
    for reason in denied.into_iter().chain(["misdirected", "role"]) {
        counter!(names::API_REFUSED, "reason" => reason).increment(0);
    }
    counter!(names::REFUSAL_BURSTS, "source" => names::NO_SOURCE).increment(0);
    for source in sources {
        for name in [
            names::ACCEPTED,
            names::DUPLICATES,
            names::CONFLICTS,
            names::UNREADABLE,
            names::REFUSAL_BURSTS,
        ] {
            counter!(name, "source" => source.to_owned()).increment(0);
        }
        for reason in UNAVAILABLE {
            counter!(names::UNAVAILABLE, "source" => source.to_owned(), "reason" => reason)
                .increment(0);
        }
    }
    for handler in handlers {
        for name in [
            names::ATTEMPTS_FAILED,
            names::LEASES_LOST,
            names::HELD,
            names::UNCERTAIN,
            names::BREAKER_OPENED,
            names::RETRIES_DEFERRED,
            names::CAPPED,
        ] {
            counter!(name, "handler" => handler.to_owned()).increment(0);
        }
        for ending in ENDINGS {
            counter!(names::DELIVERIES, "handler" => handler.to_owned(), "outcome" => ending.as_str())
                .increment(0);
        }
    }
}

/// The counter of conflicts of an operation, likewise.
pub fn operation_at_zero(operation: &str) {
    counter!(operations::OPERATION_CONFLICTS, "operation" => operation.to_owned()).increment(0);
}
