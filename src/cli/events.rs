//! `events`: a list, newest first.

use uuid::Uuid;

use crate::store::query::{EventFilter, EventPage};
use crate::telemetry::clean;

use super::context::Context;
use super::failure::Failure;
use super::words;

/// List events, newest first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: oncehook events --source stripe-main --state dead")]
pub(super) struct Args {
    /// Only events of this source.
    #[arg(long)]
    source: Option<String>,
    /// Only events of this type; * stands for any run of characters.
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Only events in this state.
    #[arg(long, value_parser = ["unreadable", "ignored", "unrecognized", "uncertain", "held", "pending", "dead", "failed", "succeeded"])]
    state: Option<String>,
    /// How many, 1 to 500.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Only events older than this event id (`next` of the page before).
    #[arg(long, value_name = "EVENT_ID")]
    before: Option<Uuid>,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let filter = EventFilter {
        source: args.source,
        event_type: args.event_type,
        state: args.state,
        before: args.before,
        limit: args.limit,
    };
    let page = context.reading_store()?.events(&filter).await?;
    if context.printer.json() {
        return context.printer.value(&page);
    }
    for line in lines(&page) {
        context.printer.line(line)?;
    }
    if page.events.is_empty() {
        context.printer.note("no such events");
    }
    if let Some(next) = &page.next {
        context
            .printer
            .note(format_args!("more: add --before {next}"));
    }
    Ok(())
}

fn lines(page: &EventPage) -> Vec<String> {
    let rows: Vec<_> = page
        .events
        .iter()
        .map(|event| {
            [
                words::moment(event.received_at),
                event.state.clone(),
                clean(&event.source).into_owned(),
                clean(event.event_type.as_deref().unwrap_or("-")).into_owned(),
                clean(&event.key).into_owned(),
            ]
        })
        .collect();
    words::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::query::EventSummary;

    #[test]
    fn f79_a_hostile_key_stays_on_its_line() {
        let event = |key: &str, event_type: Option<&str>| EventSummary {
            event_id: Uuid::nil(),
            source: "stripe-main".into(),
            key: key.into(),
            event_type: event_type.map(str::to_owned),
            entity: None,
            state: "succeeded".into(),
            received_at: "2026-12-01T00:00:00Z".parse().unwrap(),
            occurred_at: None,
        };
        let page = EventPage {
            events: vec![
                event("evt_1\n\u{1b}[2Jforged", Some("payment_intent.succeeded")),
                event("evt_2", None),
            ],
            next: None,
        };
        insta::assert_snapshot!(lines(&page).join("\n"));
    }
}
