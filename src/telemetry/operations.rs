//! The metrics of operations.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::metrics::as_f64;

/// Counter: requests for operations, by operation and what they were answered.
pub const OPERATION_REQUESTS: &str = "oncehook_operation_requests_total";
/// Histogram: time to answer a request for an operation, waiting included, by operation.
pub const OPERATION_SECONDS: &str = "oncehook_operation_seconds";
/// Counter: requests for operations with other content under a known key, by operation.
pub const OPERATION_CONFLICTS: &str = "oncehook_operation_key_conflicts_total";
/// Gauge: clients of operations that wait on this node.
pub const OPERATIONS_WAITING: &str = "oncehook_operation_clients_waiting";
/// Gauge: age of the oldest operation that is under way, by operation.
pub const OPERATION_PROCESSING_OLDEST: &str = "oncehook_operation_processing_oldest_seconds";
/// Gauge: how long the oldest operation has been uncertain, by operation.
pub const OPERATION_UNCERTAIN_OLDEST: &str = "oncehook_operation_uncertain_oldest_seconds";
/// Gauge: operations whose result is looked for, by operation.
pub const OPERATION_UNRESOLVED: &str = "oncehook_operation_unresolved_reconciliations";

/// From a replay to the longest wait.
pub(super) const SECONDS: [f64; 12] = [
    0.004, 0.016, 0.064, 0.256, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
];

/// A request for an operation was answered.
pub fn operation_answered(operation: &str, answer: &'static str, elapsed: Duration) {
    let operation = operation.to_owned();
    counter!(OPERATION_REQUESTS, "operation" => operation.clone(), "answer" => answer).increment(1);
    histogram!(OPERATION_SECONDS, "operation" => operation).record(elapsed.as_secs_f64());
}

/// Other content came under an operation's known key.
pub fn operation_conflict(operation: &str) {
    counter!(OPERATION_CONFLICTS, "operation" => operation.to_owned()).increment(1);
}

/// So many clients of operations wait.
pub fn operations_waiting(clients: usize) {
    gauge!(OPERATIONS_WAITING).set(as_f64(clients as u64));
}

/// What is open of an operation.
#[derive(Debug, Clone, Copy, Default)]
pub struct OperationGauges {
    /// Seconds since the oldest that is under way was reserved.
    pub processing_oldest_s: f64,
    /// Seconds since the oldest uncertain one became so.
    pub uncertain_oldest_s: f64,
    /// Whose result is looked for, by probes or people.
    pub unresolved: i64,
}

/// Publishes what is open of an operation.
pub fn operation_gauges(operation: &str, read: &OperationGauges) {
    let label = || operation.to_owned();
    gauge!(OPERATION_PROCESSING_OLDEST, "operation" => label()).set(read.processing_oldest_s);
    gauge!(OPERATION_UNCERTAIN_OLDEST, "operation" => label()).set(read.uncertain_oldest_s);
    let unresolved = as_f64(u64::try_from(read.unresolved).unwrap_or(0));
    gauge!(OPERATION_UNRESOLVED, "operation" => label()).set(unresolved);
}

pub(super) fn describe() {
    describe_counter!(
        OPERATION_REQUESTS,
        "Requests for operations by what they were answered"
    );
    describe_histogram!(
        OPERATION_SECONDS,
        Unit::Seconds,
        "Time to answer a request for an operation, waiting included"
    );
    describe_counter!(
        OPERATION_CONFLICTS,
        "Requests for operations with other content under a known key"
    );
    describe_gauge!(OPERATIONS_WAITING, "Clients of operations that wait");
    describe_gauge!(
        OPERATION_PROCESSING_OLDEST,
        Unit::Seconds,
        "Age of the oldest operation that is under way"
    );
    describe_gauge!(
        OPERATION_UNCERTAIN_OLDEST,
        Unit::Seconds,
        "How long the oldest operation has been uncertain"
    );
    describe_gauge!(
        OPERATION_UNRESOLVED,
        "Operations whose result is looked for"
    );
}

#[cfg(test)]
pub(super) const NAMES: [&str; 7] = [
    OPERATION_REQUESTS,
    OPERATION_SECONDS,
    OPERATION_CONFLICTS,
    OPERATIONS_WAITING,
    OPERATION_PROCESSING_OLDEST,
    OPERATION_UNCERTAIN_OLDEST,
    OPERATION_UNRESOLVED,
];

#[cfg(test)]
pub(super) fn record_samples() {
    operation_answered("o", "first", Duration::from_millis(2));
    operation_conflict("o");
    operations_waiting(3);
    operation_gauges("o", &OperationGauges::default());
}
