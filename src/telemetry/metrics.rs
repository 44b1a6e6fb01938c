//! Every metric, its name in one place.
//!
//! Labels are configured names and fixed words only, so their number is bounded whatever comes in.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::domain::{Ending, Refusal};

use super::operations;

/// Events stored for the first time, by source.
pub const ACCEPTED: &str = "oncehook_events_accepted_total";
/// Events known already with the same content, by source.
pub const DUPLICATES: &str = "oncehook_events_duplicate_total";
/// Events known already with other content, by source.
pub const CONFLICTS: &str = "oncehook_events_conflict_total";
/// Refused requests, by source and reason.
pub const REFUSED: &str = "oncehook_requests_refused_total";
/// Requests that the API listener answered 401, 403 or 421, by reason.
pub const API_REFUSED: &str = "oncehook_api_requests_refused_total";
/// Requests answered 503, by source and reason.
pub const UNAVAILABLE: &str = "oncehook_requests_unavailable_total";
/// Time from a batch's first statement to its commit.
pub const COMMIT_SECONDS: &str = "oncehook_ingest_commit_seconds";
/// Requests per committed batch.
pub const BATCH_SIZE: &str = "oncehook_ingest_batch_requests";
/// Requests waiting for their commit.
pub const QUEUE_DEPTH: &str = "oncehook_ingest_queue_requests";
/// Ended deliveries, by handler and outcome.
pub const DELIVERIES: &str = "oncehook_deliveries_total";
/// Tries that failed, by handler.
pub const ATTEMPTS_FAILED: &str = "oncehook_attempts_failed_total";
/// Leases that ended without an answer, by handler.
pub const LEASES_LOST: &str = "oncehook_leases_lost_total";
/// Counter: deliveries that cannot succeed and whose lane waits for a person, by handler.
pub const HELD: &str = "oncehook_deliveries_held_total";
/// Gauge: deliveries that wait for a person.
pub const HELD_NOW: &str = "oncehook_deliveries_held";
/// Counter: lanes that had lost their head when a node died, and go on.
pub const LANES_MENDED: &str = "oncehook_lanes_mended_total";
/// Calls whose result became unknown and that are not sent again, by handler.
pub const UNCERTAIN: &str = "oncehook_calls_uncertain_total";
/// Answers to probes, by handler and what they said.
pub const PROBES: &str = "oncehook_probes_total";
/// Gauge: deliveries whose call has an unknown result.
pub const DELIVERIES_UNCERTAIN: &str = "oncehook_deliveries_uncertain";
/// Gauge: of these, those that no probe decides any more.
pub const UNCERTAIN_FOR_PEOPLE: &str = "oncehook_deliveries_uncertain_for_people";
/// Gauge: how long the oldest of them has been uncertain, in seconds.
pub const UNCERTAIN_OLDEST: &str = "oncehook_uncertain_oldest_seconds";
/// Age of the oldest delivery that could run now.
pub const OLDEST_READY: &str = "oncehook_oldest_ready_seconds";
/// Gauge: due deliveries that nobody has claimed.
pub const LATE: &str = "oncehook_deliveries_late";
/// Gauge: leases past their end that nobody has reaped yet.
pub const STUCK: &str = "oncehook_leases_stuck";
/// Gauge: age of the oldest snapshot in the database, in seconds.
pub const OLDEST_SNAPSHOT: &str = "oncehook_oldest_snapshot_seconds";
/// Gauge: dead rows of the delivery table.
pub const DEAD_ROWS: &str = "oncehook_delivery_dead_rows";
/// Counter: verified events that could not be read, by source.
pub const UNREADABLE: &str = "oncehook_events_unreadable_total";
/// Counter: minutes with a burst of refused requests, by source.
pub const REFUSAL_BURSTS: &str = "oncehook_refusal_bursts_total";
/// Counter: answers to webhook requests, by source and status.
pub const RESPONSES: &str = "oncehook_webhook_responses_total";
/// Histogram: time to answer a webhook request, by source, in seconds.
pub const RESPONSE_SECONDS: &str = "oncehook_webhook_seconds";
/// Deliveries of handlers this node does not know.
pub const UNKNOWN_HANDLER: &str = "oncehook_deliveries_unknown_handler";
/// Gauge: how long the oldest emitted event has been waiting to be stored, in seconds.
pub const EMITTED_OLDEST: &str = "oncehook_emitted_oldest_seconds";
/// Gauge: of the oldest 10,000 that wait, those emitted to a source that this node does not know.
pub const EMITTED_UNKNOWN_SOURCE: &str = "oncehook_emitted_unknown_source";
/// Days for which partitions exist already.
pub const PARTITIONS_AHEAD: &str = "oncehook_partitions_ahead_days";

/// Gauge: deliveries that wait because their handler or source is paused.
pub const PAUSED: &str = "oncehook_deliveries_paused";
/// Gauge: lanes in which an event of a paused source is first and holds up one of another source.
pub const PAUSED_LANES: &str = "oncehook_lanes_paused";
/// Gauge: whether a handler is paused, by handler.
pub const HANDLER_PAUSED: &str = "oncehook_handler_paused";
/// Gauge: whether a source is paused, by source.
pub const SOURCE_PAUSED: &str = "oncehook_source_paused";
/// Gauge: a handler's breaker on this node: 0 closed, 1 half-open, 2 open.
pub const BREAKER: &str = "oncehook_breaker_state";
/// Counter: times that a handler's breaker opened on this node.
pub const BREAKER_OPENED: &str = "oncehook_breaker_opened_total";
/// Counter: repetitions that were put off by the retry budget, by handler.
pub const RETRIES_DEFERRED: &str = "oncehook_retries_deferred_total";
/// Counter: claims that a cap cut short, by handler.
pub const CAPPED: &str = "oncehook_claims_capped_total";

/// Commits take from under a millisecond to the 2 s after which 503 is answered.
const SECONDS: [f64; 12] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0,
];
/// A batch holds up to 256 requests.
const REQUESTS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The label of a request whose path names no source.
pub(super) const NO_SOURCE: &str = "unknown";

/// `n` events of a source were stored for the first time.
pub fn accepted(source: &str, n: u64) {
    counter!(ACCEPTED, "source" => source.to_owned()).increment(n);
}

/// `n` events of a source were known already.
pub fn duplicates(source: &str, n: u64) {
    counter!(DUPLICATES, "source" => source.to_owned()).increment(n);
}

/// `n` events of a source were known already with other content.
pub fn conflicts(source: &str, n: u64) {
    counter!(CONFLICTS, "source" => source.to_owned()).increment(n);
}

/// A request was refused. `source` is a configured name, never what the path said.
pub fn refused(source: Option<&str>, refusal: Refusal) {
    counter!(
        REFUSED,
        "source" => source.unwrap_or(NO_SOURCE).to_owned(),
        "reason" => refusal.code()
    )
    .increment(1);
}

/// A request to the API listener was refused for who sent it.
pub fn api_refused(reason: &'static str) {
    counter!(API_REFUSED, "reason" => reason).increment(1);
}

/// A request was answered 503.
pub fn unavailable(source: &str, reason: &'static str) {
    counter!(UNAVAILABLE, "source" => source.to_owned(), "reason" => reason).increment(1);
}

/// A batch was committed.
pub fn commit_took(elapsed: Duration) {
    histogram!(COMMIT_SECONDS).record(elapsed.as_secs_f64());
}

/// A batch of `requests` is being written.
pub fn batch(requests: usize) {
    histogram!(BATCH_SIZE).record(as_f64(requests as u64));
}

/// `requests` are waiting for their commit.
pub fn queue_depth(requests: usize) {
    gauge!(QUEUE_DEPTH).set(as_f64(requests as u64));
}

/// A delivery has its outcome.
pub fn finished(handler: &str, ending: Ending) {
    counter!(DELIVERIES, "handler" => handler.to_owned(), "outcome" => ending.as_str())
        .increment(1);
}

/// A try failed and is recorded.
pub fn attempt_failed(handler: &str) {
    counter!(ATTEMPTS_FAILED, "handler" => handler.to_owned()).increment(1);
}

/// A delivery cannot succeed, and its lane waits for a person.
pub fn held(handler: &str) {
    counter!(HELD, "handler" => handler.to_owned()).increment(1);
}

/// `n` lanes had lost their head when a node died.
pub fn lanes_mended(n: u64) {
    counter!(LANES_MENDED).increment(n);
}

/// A lease ended without an answer.
pub fn lease_lost(handler: &str) {
    counter!(LEASES_LOST, "handler" => handler.to_owned()).increment(1);
}

/// Whether a handler is paused.
pub fn handler_paused(handler: &str, paused: bool) {
    gauge!(HANDLER_PAUSED, "handler" => handler.to_owned()).set(f64::from(u8::from(paused)));
}

/// Whether a source is paused.
pub fn source_paused(source: &str, paused: bool) {
    gauge!(SOURCE_PAUSED, "source" => source.to_owned()).set(f64::from(u8::from(paused)));
}

/// A handler's breaker is in this state: 0 closed, 1 half-open, 2 open.
pub fn breaker(handler: &str, state: f64) {
    gauge!(BREAKER, "handler" => handler.to_owned()).set(state);
}

/// A handler's breaker opened.
pub fn breaker_opened(handler: &str) {
    counter!(BREAKER_OPENED, "handler" => handler.to_owned()).increment(1);
}

/// `n` repetitions were put off.
pub fn retries_deferred(handler: &str, n: u64) {
    counter!(RETRIES_DEFERRED, "handler" => handler.to_owned()).increment(n);
}

/// A cap cut a claim short.
pub fn capped(handler: &str) {
    counter!(CAPPED, "handler" => handler.to_owned()).increment(1);
}

/// A call's result became unknown, and it is not sent again.
pub fn uncertain(handler: &str) {
    counter!(UNCERTAIN, "handler" => handler.to_owned()).increment(1);
}

/// A receiver was asked about a call.
pub fn probed(handler: &str, said: &'static str) {
    counter!(PROBES, "handler" => handler.to_owned(), "said" => said).increment(1);
}

/// A verified event could not be read and is kept whole.
pub fn unreadable(source: &str) {
    counter!(UNREADABLE, "source" => source.to_owned()).increment(1);
}

/// Many requests of one source were refused within a minute.
pub fn refusal_burst(source: Option<&str>) {
    counter!(REFUSAL_BURSTS, "source" => source.unwrap_or(NO_SOURCE).to_owned()).increment(1);
}

/// A webhook request was answered.
pub fn responded(source: Option<&str>, status: u16, elapsed: Duration) {
    let source = source.unwrap_or(NO_SOURCE).to_owned();
    counter!(RESPONSES, "source" => source.clone(), "status" => status.to_string()).increment(1);
    histogram!(RESPONSE_SECONDS, "source" => source).record(elapsed.as_secs_f64());
}

/// Numbers read from the database every few seconds.
#[derive(Debug, Clone, Copy)]
pub struct Gauges {
    /// Seconds since the oldest due delivery became due.
    pub oldest_ready_s: f64,
    /// Due and not claimed.
    pub late: i64,
    /// Leases past their end, not yet reaped.
    pub stuck: i64,
    /// Deliveries of handlers this node does not know, and leaves alone.
    pub unknown_handler: i64,
    /// Age in seconds of the oldest snapshot in the database.
    pub oldest_snapshot_s: f64,
    /// Dead rows of the delivery table.
    pub dead_rows: i64,
    /// Deliveries that wait for a person.
    pub held: i64,
    /// Whole days after today for which partitions exist.
    pub days_ahead: i64,
    /// Waiting because of a pause.
    pub paused: i64,
    /// Lanes whose first delivery is of a paused source, and the next one is not.
    pub paused_lanes: i64,
    /// Deliveries whose call has an unknown result.
    pub uncertain: i64,
    /// Of these, those that wait for a person.
    pub uncertain_for_people: i64,
    /// Seconds since the oldest of them became uncertain.
    pub uncertain_oldest_s: f64,
    /// Seconds since the oldest event that waits to be stored was emitted.
    pub emitted_oldest_s: f64,
    /// Of those that wait, events of sources this node does not know.
    pub emitted_unknown_source: i64,
}

/// Publishes what was read.
pub fn gauges(read: &Gauges) {
    let count = |n: i64| as_f64(u64::try_from(n).unwrap_or(0));
    gauge!(OLDEST_READY).set(read.oldest_ready_s);
    gauge!(LATE).set(count(read.late));
    gauge!(STUCK).set(count(read.stuck));
    gauge!(UNKNOWN_HANDLER).set(count(read.unknown_handler));
    gauge!(OLDEST_SNAPSHOT).set(read.oldest_snapshot_s);
    gauge!(DEAD_ROWS).set(count(read.dead_rows));
    gauge!(HELD_NOW).set(count(read.held));
    gauge!(PARTITIONS_AHEAD).set(count(read.days_ahead));
    gauge!(PAUSED).set(count(read.paused));
    gauge!(PAUSED_LANES).set(count(read.paused_lanes));
    gauge!(DELIVERIES_UNCERTAIN).set(count(read.uncertain));
    gauge!(UNCERTAIN_FOR_PEOPLE).set(count(read.uncertain_for_people));
    gauge!(UNCERTAIN_OLDEST).set(read.uncertain_oldest_s);
    gauge!(EMITTED_OLDEST).set(read.emitted_oldest_s);
    gauge!(EMITTED_UNKNOWN_SOURCE).set(count(read.emitted_unknown_source));
}

/// Counts above 2^53 lose their last digits, which no gauge needs.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(super) fn as_f64(n: u64) -> f64 {
    n as f64
}

/// The recorder of this process, rendered by `/metrics`. Installed at the first call.
///
/// When the surrounding application has installed a recorder of its own, our metrics go there and
/// the page stays empty.
pub fn prometheus() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let recorder = buckets(PrometheusBuilder::new()).build_recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("this process records its metrics elsewhere: /metrics stays empty");
            }
            describe();
            handle
        })
        .clone()
}

/// Falls back to summaries if the exporter refuses the buckets, which it does only for empty ones.
fn buckets(builder: PrometheusBuilder) -> PrometheusBuilder {
    builder
        .set_buckets_for_metric(Matcher::Full(COMMIT_SECONDS.to_owned()), &SECONDS)
        .and_then(|b| {
            b.set_buckets_for_metric(Matcher::Full(RESPONSE_SECONDS.to_owned()), &SECONDS)
        })
        .and_then(|b| {
            let name = operations::OPERATION_SECONDS.to_owned();
            b.set_buckets_for_metric(Matcher::Full(name), &operations::SECONDS)
        })
        .and_then(|b| b.set_buckets_for_metric(Matcher::Full(BATCH_SIZE.to_owned()), &REQUESTS))
        .unwrap_or_else(|_| PrometheusBuilder::new())
}

fn describe() {
    describe_counter!(ACCEPTED, "Events stored for the first time");
    describe_counter!(DUPLICATES, "Events known already with the same content");
    describe_counter!(
        CONFLICTS,
        "Events known already with other content: recorded, not processed"
    );
    describe_counter!(REFUSED, "Refused requests by reason");
    describe_counter!(
        API_REFUSED,
        "API requests refused for who sent them, by reason"
    );
    describe_counter!(
        UNAVAILABLE,
        "Requests answered 503 by reason: nothing was acknowledged"
    );
    describe_histogram!(
        COMMIT_SECONDS,
        Unit::Seconds,
        "Time from a batch's first statement to its commit"
    );
    describe_histogram!(BATCH_SIZE, "Requests per committed batch");
    describe_gauge!(QUEUE_DEPTH, "Requests waiting for their commit");
    describe_counter!(DELIVERIES, "Ended deliveries by outcome");
    describe_counter!(ATTEMPTS_FAILED, "Tries that failed and are recorded");
    describe_counter!(LEASES_LOST, "Leases that ended without an answer");
    describe_counter!(
        HELD,
        "Deliveries that cannot succeed and whose lane waits for a person"
    );
    describe_gauge!(HELD_NOW, "Deliveries that wait for a person");
    describe_counter!(
        LANES_MENDED,
        "Lanes that had lost their head when a node died, and go on"
    );
    describe_counter!(
        UNCERTAIN,
        "Calls whose result became unknown and that are not sent again"
    );
    describe_counter!(PROBES, "Answers to probes by what they said");
    describe_gauge!(
        DELIVERIES_UNCERTAIN,
        "Deliveries whose call has an unknown result"
    );
    describe_gauge!(
        UNCERTAIN_FOR_PEOPLE,
        "Of these, those that no probe decides any more"
    );
    describe_gauge!(
        UNCERTAIN_OLDEST,
        Unit::Seconds,
        "How long the oldest of them has been uncertain"
    );
    describe_gauge!(
        OLDEST_READY,
        Unit::Seconds,
        "Age of the oldest delivery that could run now"
    );
    describe_gauge!(LATE, "Due deliveries that nobody has claimed");
    describe_gauge!(STUCK, "Leases past their end that nobody has reaped yet");
    describe_gauge!(
        OLDEST_SNAPSHOT,
        Unit::Seconds,
        "Age of the oldest snapshot in the database"
    );
    describe_gauge!(DEAD_ROWS, "Dead rows of the delivery table");
    describe_counter!(
        UNREADABLE,
        "Verified events that could not be read and are kept whole"
    );
    describe_counter!(REFUSAL_BURSTS, "Minutes with a burst of refused requests");
    describe_counter!(RESPONSES, "Answers to webhook requests");
    describe_histogram!(
        RESPONSE_SECONDS,
        Unit::Seconds,
        "Time to answer a webhook request"
    );
    describe_gauge!(
        UNKNOWN_HANDLER,
        "Deliveries of handlers this node does not know"
    );
    describe_flow();
}

/// What waits, and what holds it back.
fn describe_flow() {
    describe_gauge!(
        EMITTED_OLDEST,
        Unit::Seconds,
        "How long the oldest emitted event has been waiting to be stored"
    );
    describe_gauge!(
        EMITTED_UNKNOWN_SOURCE,
        "Emitted events of sources this node does not know"
    );
    describe_gauge!(PAUSED, "Deliveries that wait because of a pause");
    describe_gauge!(
        PAUSED_LANES,
        "Lanes in which an event of a paused source holds up one of another"
    );
    describe_gauge!(HANDLER_PAUSED, "1 while a handler is paused");
    describe_gauge!(SOURCE_PAUSED, "1 while a source is paused");
    describe_gauge!(
        BREAKER,
        "Breaker of a handler on this node: 0 closed, 1 half-open, 2 open"
    );
    describe_counter!(BREAKER_OPENED, "Times a handler's breaker opened");
    describe_counter!(
        RETRIES_DEFERRED,
        "Repetitions that the retry budget put off"
    );
    describe_counter!(CAPPED, "Claims that a rate or max_in_flight cut short");
    operations::describe();
    describe_gauge!(PARTITIONS_AHEAD, "Days for which partitions exist already");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_rendered_with_its_help() {
        let handle = prometheus();
        accepted("s", 2);
        duplicates("s", 1);
        conflicts("s", 1);
        refused(None, Refusal::UnknownSource);
        unavailable("s", "database");
        commit_took(Duration::from_millis(3));
        batch(7);
        queue_depth(3);
        finished("h", Ending::Succeeded);
        attempt_failed("h");
        lease_lost("h");
        held("h");
        lanes_mended(1);
        uncertain("h");
        probed("h", "absent");
        unreadable("s");
        refusal_burst(None);
        responded(None, 200, Duration::from_millis(1));
        gauges(&Gauges {
            oldest_ready_s: 4.0,
            late: 1,
            stuck: 0,
            unknown_handler: 0,
            oldest_snapshot_s: 0.1,
            dead_rows: 3,
            held: 1,
            days_ahead: 14,
            paused: 2,
            paused_lanes: 1,
            uncertain: 2,
            uncertain_for_people: 1,
            uncertain_oldest_s: 90.0,
            emitted_oldest_s: 0.2,
            emitted_unknown_source: 3,
        });
        handler_paused("h", true);
        source_paused("s", false);
        breaker("h", 2.0);
        breaker_opened("h");
        retries_deferred("h", 3);
        capped("h");
        operations::record_samples();
        let page = handle.render();
        for name in [
            ACCEPTED,
            DUPLICATES,
            CONFLICTS,
            REFUSED,
            UNAVAILABLE,
            COMMIT_SECONDS,
            BATCH_SIZE,
            QUEUE_DEPTH,
            DELIVERIES,
            ATTEMPTS_FAILED,
            LEASES_LOST,
            HELD,
            HELD_NOW,
            LANES_MENDED,
            UNCERTAIN,
            PROBES,
            DELIVERIES_UNCERTAIN,
            UNCERTAIN_FOR_PEOPLE,
            UNCERTAIN_OLDEST,
            OLDEST_READY,
            LATE,
            STUCK,
            UNREADABLE,
            UNKNOWN_HANDLER,
            EMITTED_OLDEST,
            EMITTED_UNKNOWN_SOURCE,
            PARTITIONS_AHEAD,
            OLDEST_SNAPSHOT,
            DEAD_ROWS,
            REFUSAL_BURSTS,
            RESPONSES,
            RESPONSE_SECONDS,
            PAUSED,
            PAUSED_LANES,
            HANDLER_PAUSED,
            SOURCE_PAUSED,
            BREAKER,
            BREAKER_OPENED,
            RETRIES_DEFERRED,
            CAPPED,
        ]
        .into_iter()
        .chain(operations::NAMES)
        {
            assert!(
                page.contains(&format!("# HELP {name} ")),
                "{name} in\n{page}"
            );
        }
        assert!(
            page.contains("oncehook_ingest_commit_seconds_bucket{le=\"0.004\"}"),
            "{page}"
        );
        assert!(page.contains("reason=\"unknown_source\""), "{page}");
    }
}
