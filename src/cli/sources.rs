//! `sources list`, `sources pause`, `sources resume`; and what `handlers` shares with them.

use clap::Subcommand;
use serde_json::json;

use crate::store::flow::{Pausable, Pause};
use crate::telemetry::clean;

use super::context::Context;
use super::failure::Failure;
use super::words::{count, moment};

/// List sources, and hold the handling of their events back.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List every source, with its pause.
    List,
    /// Store a source's events without handling them, until `resume`.
    ///
    /// Webhooks are taken and acknowledged as before. What is being handled ends normally. Every
    /// node follows within one poll.
    #[command(
        after_help = "Example: oncehook sources pause stripe-main --reason 'ledger is migrated'"
    )]
    Pause(Switch),
    /// Handle a source's events again, those that waited first.
    #[command(after_help = "Example: oncehook sources resume stripe-main")]
    Resume(Switch),
}

/// What is paused or resumed, and why.
#[derive(Debug, clap::Args)]
pub(super) struct Switch {
    /// Name.
    name: String,
    /// Why; kept in the audit trail.
    #[arg(long, value_parser = super::replay::reason)]
    reason: Option<String>,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::List => list(context).await,
        Verb::Pause(wanted) => switch(context, Pausable::Source, &wanted, true).await,
        Verb::Resume(wanted) => switch(context, Pausable::Source, &wanted, false).await,
    }
}

async fn list(context: &Context) -> Result<(), Failure> {
    let sources = context.store()?.sources().await?;
    if context.printer.json() {
        return context.printer.value(&sources);
    }
    for source in &sources {
        let aside = match u64::try_from(source.aside).unwrap_or(0) {
            0 => String::new(),
            n => format!(", {} set aside", count(n, "delivery", "deliveries")),
        };
        context.printer.line(format_args!(
            "{:<24} {}{aside}",
            clean(&source.name),
            standing(source.paused.as_ref())
        ))?;
    }
    Ok(())
}

/// Pauses or resumes.
pub(super) async fn switch(
    context: &Context,
    what: Pausable,
    wanted: &Switch,
    pause: bool,
) -> Result<(), Failure> {
    let (store, actor) = (context.store()?, context.actor());
    let (name, reason) = (wanted.name.as_str(), wanted.reason.as_deref());
    if pause {
        store.pause(what, name, reason, &actor).await?;
    } else {
        store.resume(what, name, reason, &actor).await?;
    }
    if context.printer.json() {
        return context
            .printer
            .value(&json!({ what.as_str(): name, "paused": pause }));
    }
    let word = if pause { "paused" } else { "resumed" };
    context.printer.line(format_args!(
        "{word} {} {}: every node follows within its poll",
        what.as_str(),
        clean(name)
    ))
}

/// `running`, or since when it is paused, by whom and why.
pub(super) fn standing(paused: Option<&Pause>) -> String {
    paused.map_or_else(|| "running".to_owned(), pause_text)
}

/// `paused since .. by ..: ..`
pub(super) fn pause_text(pause: &Pause) -> String {
    let reason = pause.reason.as_deref().map(|r| format!(": {}", clean(r)));
    format!(
        "paused since {} by {}{}",
        moment(pause.since),
        clean(&pause.by),
        reason.unwrap_or_default()
    )
}
