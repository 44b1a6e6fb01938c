//! `replay --list` and `replay --show`: bulk replays as they stand.

use jiff::Timestamp;

use crate::store::bulk::{BulkDetails, BulkReplay, Refused};
use crate::telemetry::clean;

use super::super::context::Context;
use super::super::failure::{Exit, Failure};
use super::super::words::{self, moment};

pub(super) async fn list(context: &Context) -> Result<(), Failure> {
    let bulks = context.reading_store()?.bulk_replays().await?;
    if context.printer.json() {
        return context.printer.value(&bulks);
    }
    for line in lines(&bulks, Timestamp::now()) {
        context.printer.line(line)?;
    }
    if bulks.is_empty() {
        context.printer.note("there was no bulk replay");
    }
    Ok(())
}

pub(super) async fn show(context: &Context, bulk: i64) -> Result<(), Failure> {
    let program = words::program(&context.environment);
    let found = context.reading_store()?.bulk_details(bulk).await;
    let details = found.map_err(|error| {
        let failure = Failure::from(error);
        match failure.exit() {
            Exit::No => failure.hint(format!("`{program} replay --list` lists them")),
            _ => failure,
        }
    })?;
    if context.printer.json() {
        return context.printer.value(&details);
    }
    context.printer.line(text(&details))?;
    let next = match details.bulk.state.as_str() {
        "running" => "--stop",
        "stopped" => "--continue",
        _ => return Ok(()),
    };
    context.printer.note(format_args!(
        "next: {program} replay {next} {bulk} --reason '...'"
    ));
    Ok(())
}

/// Why a run was not opened.
pub(super) fn refused(refused: &Refused) -> String {
    format!(
        "not {} {} {}: {}",
        clean(&refused.source),
        clean(&refused.key),
        clean(&refused.handler),
        clean(&refused.why)
    )
}

fn lines(bulks: &[BulkReplay], now: Timestamp) -> Vec<String> {
    let row = |bulk: &BulkReplay| {
        [
            bulk.bulk.to_string(),
            state(bulk),
            format!("{} ready", bulk.replayed),
            format!("{} refused", bulk.refused),
            format!("{}/s", bulk.rate),
            format!("{} ago", words::age(bulk.started_at, now)),
            clean(&bulk.actor).into_owned(),
            format!("{}: {}", meant(bulk), clean(&bulk.reason)),
        ]
    };
    let rows: Vec<_> = bulks.iter().map(row).collect();
    words::table(&rows)
}

fn state(bulk: &BulkReplay) -> String {
    bulk.state.replace('_', " ")
}

/// Which runs, without their time.
fn meant(bulk: &BulkReplay) -> String {
    let named = |what: &str, name: &Option<String>| {
        let name = name.as_deref()?;
        Some(format!("{what} {}", clean(name)))
    };
    let handler = named("handler", &bulk.handler);
    let parts = [
        Some(bulk.results.join(" or ")),
        Some(handler.unwrap_or_else(|| "every handler".to_owned())),
        named("source", &bulk.source),
        named("type", &bulk.event_type),
        bulk.force.then(|| "by force".to_owned()),
        bulk.verify_bytes.then(|| "bytes verified".to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn text(details: &BulkDetails) -> String {
    let bulk = &details.bulk;
    let rows = [
        ("bulk", Some(bulk.bulk.to_string())),
        ("state", Some(state(bulk))),
        (
            "runs",
            Some(format!(
                "{} ready, {} refused, {} per second at most",
                bulk.replayed, bulk.refused, bulk.rate
            )),
        ),
        ("means", Some(meant(bulk))),
        (
            "received",
            Some(format!("{} to {}", moment(bulk.since), moment(bulk.until))),
        ),
        ("reached", bulk.reached.map(moment)),
    ];
    let mut lines: Vec<String> = rows
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name:<9} {}", value?)))
        .collect();
    lines.push(String::new());
    for action in &details.history {
        let reason = action.reason.as_deref().map(|r| format!(": {}", clean(r)));
        lines.push(format!(
            "{}  {:<9}  {}{}",
            moment(action.at),
            action.what.replace('_', " "),
            clean(&action.actor),
            reason.unwrap_or_default()
        ));
    }
    lines.extend(bulk.refusals.iter().map(refused));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::bulk::BulkAction;

    fn bulk(number: i64, state: &str) -> BulkReplay {
        let at = |text: &str| text.parse().unwrap();
        BulkReplay {
            bulk: number,
            state: state.into(),
            replayed: 120,
            refused: 1,
            refusals: Vec::new(),
            reached: Some(at("2026-12-01T12:00:00Z")),
            source: None,
            handler: None,
            event_type: None,
            results: vec!["dead".into()],
            since: at("2026-12-01T00:00:00Z"),
            until: at("2026-12-02T00:00:00Z"),
            force: false,
            verify_bytes: false,
            rate: 100,
            reason: "account was\n\u{1b}[2Jclosed".into(),
            actor: "cli:eva".into(),
            started_at: at("2026-12-02T03:00:00Z"),
            ended_at: None,
        }
    }

    #[test]
    fn a_list_and_a_page_read_well_and_stay_on_their_lines() {
        let narrow = BulkReplay {
            replayed: 7,
            rate: 5,
            source: Some("stripe-main".into()),
            handler: Some("ledger".into()),
            event_type: Some("charge.*\u{202e}".into()),
            results: vec!["dead".into(), "succeeded".into()],
            force: true,
            verify_bytes: true,
            refusals: vec![Refused {
                source: "stripe-main".into(),
                key: "evt_1\n".into(),
                handler: "ledger".into(),
                why: "a run is live".into(),
            }],
            ..bulk(12, "stopped")
        };
        let now = "2026-12-02T03:12:59Z".parse().unwrap();
        let list = lines(&[narrow.clone(), bulk(9, "given_up")], now);
        let action = |at: &str, what: &str| BulkAction {
            at: at.parse().unwrap(),
            what: what.into(),
            actor: "cli:eva".into(),
            reason: Some("receiver\nis slow".into()),
        };
        let page = text(&BulkDetails {
            bulk: narrow,
            history: vec![
                action("2026-12-02T03:00:00Z", "started"),
                action("2026-12-02T03:05:00Z", "stopped"),
            ],
        });
        insta::assert_snapshot!(format!("{}\n\n{page}", list.join("\n")));
    }
}
