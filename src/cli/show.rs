//! `show`: what happened to one event.

use jiff::Timestamp;

use crate::store::query::{DeadLetterInfo, DeliveryInfo, EventSummary, Timeline};
use crate::telemetry::clean;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::sources::pause_text;
use super::words::{self, count, moment};

/// Show what happened to one event.
///
/// Requests, duplicates, attempts, outcomes, conflicts, and what operators did, by time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: oncehook show stripe-main evt_1NG8Du2eZvKYlo2C")]
pub(super) struct Args {
    /// Source name.
    source: String,
    /// Event key, or the provider's event id where only one event has it.
    key: String,
    /// Write the exact bytes of the event's body to stdout, and nothing else.
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let store = context.reading_store()?;
    let missing = |failure: Failure| match failure.exit() {
        Exit::No => failure.hint(format!(
            "`{} events --source {}` lists what was received; refused requests leave no event",
            words::program(&context.environment),
            words::shell(&args.source)
        )),
        _ => failure,
    };
    if args.raw {
        let body = store.body(&args.source, &args.key).await;
        return context.printer.bytes(&body.map_err(|e| missing(e.into()))?);
    }
    let timeline = store.timeline(&args.source, &args.key).await;
    let timeline = timeline.map_err(|e| missing(e.into()))?;
    if context.printer.json() {
        return context.printer.value(&timeline);
    }
    context.printer.line(text(&timeline))?;
    for open in timeline
        .deliveries
        .iter()
        .filter(|d| d.uncertain_at.is_some())
    {
        context.printer.note(format_args!(
            "next: ask the receiver about effect key {}, then say what it knows: {} resolve --handler {} --as succeeded|failed|retry|dead|probe --reason '...' {} {}",
            open.effect_key,
            words::program(&context.environment),
            words::shell(&open.handler),
            words::shell(&timeline.event.source),
            words::operand(&timeline.event.key),
        ));
    }
    for held in timeline.deliveries.iter().filter(|d| d.state == "held") {
        context.printer.note(format_args!(
            "next: its lane waits for a decision; once the cause is mended: {} resolve --handler {} --as retry --reason '...' {} {}; dead gives it up, succeeded or failed says how it ended",
            words::program(&context.environment),
            words::shell(&held.handler),
            words::shell(&timeline.event.source),
            words::operand(&timeline.event.key),
        ));
    }
    let program = words::program(&context.environment);
    for dead in &timeline.dead_letters {
        context
            .printer
            .note(redrive(dead, &timeline.event, program));
    }
    Ok(())
}

/// What can be done about a dead letter, or why nothing now: by the words of who would refuse it.
fn redrive(dead: &DeadLetterInfo, event: &EventSummary, program: &str) -> String {
    if let Some(refused) = &dead.refused {
        return format!("not to be replayed now: {}", clean(refused));
    }
    format!(
        "next: once its cause is mended: {program} replay --handler {} --reason '...' {} {}",
        words::shell(&dead.handler),
        words::shell(&event.source),
        words::operand(&event.key),
    )
}

/// The whole page for people.
fn text(timeline: &Timeline) -> String {
    let mut lines = head(timeline);
    lines.push(String::new());
    let mut history = history(timeline);
    history.sort_by_key(|(at, _, _)| *at);
    lines.extend(
        history
            .into_iter()
            .map(|(at, what, text)| format!("{}  {what:<9}  {text}", moment(at))),
    );
    if !timeline.deliveries.is_empty() {
        lines.push(String::new());
        lines.extend(timeline.deliveries.iter().map(open_work));
    }
    lines.join("\n")
}

fn head(timeline: &Timeline) -> Vec<String> {
    let event = &timeline.event;
    let state = match &timeline.state_reason {
        Some(reason) => format!("{}: {}", event.state, clean(reason)),
        None => event.state.clone(),
    };
    let id = event.event_id.to_string();
    let cause = timeline
        .caused_by
        .as_ref()
        .map(|cause| format!("{} {}", cause.source, cause.key));
    let rows = [
        ("event", Some(event.key.as_str())),
        ("source", Some(event.source.as_str())),
        ("type", event.event_type.as_deref()),
        ("state", Some(state.as_str())),
        ("id", Some(id.as_str())),
        ("entity", event.entity.as_deref()),
        ("account", timeline.account.as_deref()),
        ("mode", timeline.mode.as_deref()),
        ("sha256", Some(timeline.raw_digest.as_str())),
        ("trace", timeline.correlation_id.as_deref()),
        ("cause", cause.as_deref()),
    ];
    rows.into_iter()
        .filter_map(|(name, value)| Some(format!("{name:<8} {}", clean(value?))))
        .collect()
}

type Entry = (Timestamp, &'static str, String);

fn history(timeline: &Timeline) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    if let Some(at) = timeline.event.occurred_at {
        entries.push((at, "occurred", "by the provider's clock".to_owned()));
    }
    entries.push(received(timeline));
    for receipt in &timeline.receipts {
        let copies = count(u64::try_from(receipt.count).unwrap_or(0), "copy", "copies");
        let text = format!("{copies}{}", by_secret(receipt.secret_label.as_deref()));
        entries.push((receipt.received_at, "duplicate", text));
    }
    for conflict in &timeline.conflicts {
        let text = format!(
            "other content under this key: sha256 {}, first {}; not processed",
            short(&conflict.raw_digest),
            short(&conflict.first_digest)
        );
        entries.push((conflict.seen_at, "conflict", text));
    }
    for attempt in &timeline.attempts {
        let error = attempt.error.as_deref().map(|e| format!(": {}", clean(e)));
        let text = format!(
            "{} run {}: {}{}",
            clean(&attempt.handler),
            attempt.run,
            attempt.verdict,
            error.unwrap_or_default()
        );
        entries.push((attempt.ended_at, "attempt", text));
    }
    for outcome in &timeline.outcomes {
        let mut text = format!(
            "{} run {}: {} by {}, {}, effect key {}",
            clean(&outcome.handler),
            outcome.run,
            outcome.result,
            outcome.decided_by,
            count(u64::try_from(outcome.attempts).unwrap_or(0), "try", "tries"),
            outcome.effect_key
        );
        for (name, value) in [("reason", &outcome.reason), ("resource", &outcome.resource)] {
            if let Some(value) = value {
                text.push_str(", ");
                text.push_str(name);
                text.push(' ');
                text.push_str(&clean(value));
            }
        }
        entries.push((outcome.finished_at, "outcome", text));
    }
    for audit in &timeline.audit {
        let reason = audit.reason.as_deref().map(|r| format!(": {}", clean(r)));
        let decision = audit
            .resolved_as
            .as_deref()
            .map(|word| format!(" as {}", clean(word)));
        let bulk = audit
            .bulk
            .as_deref()
            .map(|b| format!(" (bulk {})", clean(b)));
        let text = format!(
            "{} {}{}{}{}",
            clean(&audit.actor),
            clean(&audit.action),
            decision.unwrap_or_default(),
            bulk.unwrap_or_default(),
            reason.unwrap_or_default()
        );
        entries.push((audit.at, "audit", text));
    }
    entries
}

fn received(timeline: &Timeline) -> Entry {
    let text = match &timeline.request {
        Some(request) => format!(
            "{}{}{}",
            count(
                u64::try_from(request.body_bytes).unwrap_or(0),
                "byte",
                "bytes"
            ),
            request
                .peer
                .as_deref()
                .map(|peer| format!(" from {}", clean(peer)))
                .unwrap_or_default(),
            by_secret(request.secret_label.as_deref())
        ),
        None => "the payload has been dropped".to_owned(),
    };
    (timeline.event.received_at, "received", text)
}

fn by_secret(label: Option<&str>) -> String {
    label
        .map(|label| format!(", verified by secret {:?}", clean(label)))
        .unwrap_or_default()
}

fn open_work(delivery: &DeliveryInfo) -> String {
    let number = |n: i16| u64::try_from(n).unwrap_or(0);
    let state = match (delivery.uncertain_at, delivery.run_at) {
        (None, due) => {
            let due = due.map_or_else(|| "never".to_owned(), moment);
            format!("{}, due {due}", delivery.state)
        }
        (Some(since), next) => format!(
            "{} since {}: a call was perhaps made, and its result is not known; {}, {}",
            delivery.state,
            moment(since),
            count(number(delivery.probes), "probe", "probes"),
            next.map_or_else(
                || "a person must decide".to_owned(),
                |at| format!("the receiver is asked next at {}", moment(at))
            ),
        ),
    };
    let mut text = format!(
        "open: {} run {}: {state}, {}",
        clean(&delivery.handler),
        delivery.run,
        count(number(delivery.failures), "failure", "failures"),
    );
    if let (Some(_), Some(until)) = (delivery.uncertain_at, delivery.in_flight_until) {
        text.push_str(", the call may be under way until ");
        text.push_str(&moment(until));
    }
    if delivery.suspect {
        text.push_str(", a lease was lost before");
    }
    if let Some(reason) = &delivery.state_reason {
        text.push_str(" because of ");
        text.push_str(reason);
    }
    if let Some(lane) = &delivery.lane {
        text.push_str(", lane ");
        text.push_str(lane);
    }
    if let Some(first) = &delivery.behind {
        let (source, key) = (clean(&first.source), clean(&first.key));
        text.extend([" behind ", &source, " ", &key, " (", &first.state]);
        if let Some(pause) = &first.source_paused {
            text.extend([", its source ", &pause_text(pause)]);
        }
        text.push(')');
    }
    if let Some(until) = delivery.lease_until {
        text.push_str(", leased until ");
        text.push_str(&moment(until));
    }
    if delivery.priority != "normal" {
        text.push_str(", priority ");
        text.push_str(delivery.priority);
    }
    for (what, pause) in [
        ("handler", &delivery.handler_paused),
        ("source", &delivery.source_paused),
    ] {
        // What is leased runs all the same.
        if let Some(pause) = pause.as_ref().filter(|_| delivery.state != "leased") {
            text.extend([", ", what, " ", &pause_text(pause)]);
        }
    }
    text.push_str(", effect key ");
    text.push_str(&delivery.effect_key);
    text
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::query::{
        AttemptInfo, AuditInfo, CauseInfo, ConflictInfo, OutcomeInfo, ReceiptInfo, RequestInfo,
    };

    fn at(second: u32) -> Timestamp {
        format!("2026-12-01T00:00:{second:02}Z").parse().unwrap()
    }

    fn timeline() -> Timeline {
        Timeline {
            event: EventSummary {
                event_id: uuid::Uuid::nil(),
                source: "stripe-main".into(),
                key: "evt_1".into(),
                event_type: Some("payment_intent.succeeded".into()),
                entity: Some("pi_1".into()),
                state: "dead".into(),
                received_at: at(2),
                occurred_at: Some(at(1)),
            },
            provider_id: Some("evt_1".into()),
            account: None,
            mode: Some("live".into()),
            state_reason: None,
            raw_digest: "ab".repeat(32),
            correlation_id: None,
            caused_by: Some(CauseInfo {
                source: "shop".into(),
                key: "order_1".into(),
            }),
            request: Some(RequestInfo {
                received_at: at(2),
                body_bytes: 512,
                secret_label: Some("2026-11".into()),
                peer: Some("127.0.0.1".into()),
                path: None,
                headers: serde_json::Value::Null,
            }),
            receipts: vec![ReceiptInfo {
                received_at: at(9),
                count: 2,
                secret_label: Some("2026-11".into()),
            }],
            received_count: 3,
            deliveries: vec![DeliveryInfo {
                handler: "echo".into(),
                run: 1,
                state: "leased".into(),
                state_reason: None,
                lane: Some("pi_1".into()),
                failures: 1,
                suspect: true,
                run_at: Some(at(8)),
                lease_until: Some(at(30)),
                uncertain_at: None,
                in_flight_until: None,
                probes: 0,
                effect_key: "ohk_2".into(),
                priority: "normal",
                handler_paused: None,
                source_paused: None,
                behind: None,
            }],
            outcomes: vec![OutcomeInfo {
                handler: "ledger".into(),
                run: 1,
                result: "dead".into(),
                decided_by: "handler".into(),
                reason: Some("permanent error: no such account".into()),
                resource: None,
                external_id: None,
                attempts: 1,
                finished_at: at(5),
                effect_key: "ohk_1".into(),
            }],
            attempts: vec![AttemptInfo {
                handler: "ledger".into(),
                run: 1,
                verdict: "permanent".into(),
                error: Some("no such\naccount".into()),
                told_by: None,
                started_at: Some(at(4)),
                ended_at: at(5),
            }],
            conflicts: vec![ConflictInfo {
                seen_at: at(7),
                first_digest: "ab".repeat(32),
                raw_digest: "cd".repeat(32),
            }],
            audit: vec![
                AuditInfo {
                    at: at(6),
                    actor: "cli:eva".into(),
                    action: "replay".into(),
                    reason: Some("mended".into()),
                    resolved_as: None,
                    bulk: Some("b0".into()),
                },
                AuditInfo {
                    at: at(10),
                    actor: "api".into(),
                    action: "event.resolve".into(),
                    reason: Some("it can be asked now".into()),
                    resolved_as: Some("probe".into()),
                    bulk: None,
                },
            ],
            dead_letters: Vec::new(),
        }
    }

    #[test]
    fn a_timeline_reads_from_top_to_bottom() {
        insta::assert_snapshot!(text(&timeline()));
    }

    #[test]
    fn an_uncertain_delivery_tells_what_is_known_and_when_the_receiver_is_asked() {
        let uncertain = DeliveryInfo {
            handler: "payout".into(),
            run: 1,
            state: "uncertain".into(),
            state_reason: None,
            lane: None,
            failures: 1,
            suspect: false,
            run_at: Some(at(42)),
            lease_until: None,
            uncertain_at: Some(at(12)),
            in_flight_until: Some(at(59)),
            probes: 1,
            effect_key: "ohk_3".into(),
            priority: "normal",
            handler_paused: None,
            source_paused: None,
            behind: None,
        };
        let for_people = DeliveryInfo {
            run_at: None,
            probes: 6,
            ..uncertain.clone()
        };
        insta::assert_snapshot!([open_work(&uncertain), open_work(&for_people)].join("\n"));
    }

    #[test]
    fn a_replay_is_offered_exactly_where_none_would_refuse_it() {
        let event = timeline().event;
        let dead = |refused: Option<&str>| DeadLetterInfo {
            handler: "ledger".into(),
            run: 1,
            refused: refused.map(str::to_owned),
        };
        assert_eq!(
            redrive(&dead(None), &event, "oncehook"),
            "next: once its cause is mended: oncehook replay --handler ledger --reason '...' stripe-main evt_1"
        );
        let told = redrive(&dead(Some("its call\nis out")), &event, "oncehook");
        assert!(
            told.starts_with("not to be replayed now: its call"),
            "{told}"
        );
        assert!(
            !told.contains('\n') && !told.contains("--handler"),
            "{told}"
        );
    }
}
