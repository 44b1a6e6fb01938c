//! `replay`: a new run, by command.

use jiff::Timestamp;

use crate::store::ReplayRequest;
use crate::store::query::Replayed;
use crate::telemetry::clean;

use super::context::Context;
use super::failure::Failure;
use super::words;

const EXAMPLES: &str = "Examples:\n\
    \x20 oncehook replay stripe-main evt_1 --handler ledger --reason 'account 42 was missing'\n\
    \x20 oncehook replay --missing --handler ledger --since 7d --dry-run --reason 'handler is new'";

/// Run a handler again for an event, or for the events it missed.
///
/// Refused while a run is live. A dead letter keeps its effect key. A run that succeeded is only
/// repeated with --force, under a new effect key: outside effects happen again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Source name.
    #[arg(required_unless_present = "missing", conflicts_with = "missing")]
    source: Option<String>,
    /// Event key, or the provider's event id where only one event has it.
    #[arg(required_unless_present = "missing", conflicts_with = "missing")]
    key: Option<String>,
    /// Handler to run.
    #[arg(long)]
    handler: String,
    /// Why; kept in the audit trail.
    #[arg(long, value_parser = reason)]
    reason: String,
    /// Also when it succeeded: a new effect key, so outside effects happen again.
    #[arg(long, conflicts_with = "missing")]
    force: bool,
    /// Only if this is the number of the last run.
    #[arg(long, value_name = "N", conflicts_with = "missing")]
    expected_run: Option<i16>,
    /// Every matching event that has neither a delivery nor an outcome for the handler.
    #[arg(long, requires = "since")]
    missing: bool,
    /// Received since then: "2026-12-01T00:00:00Z", or an age such as "24h".
    #[arg(long, value_name = "WHEN", value_parser = words::since, requires = "missing")]
    since: Option<Timestamp>,
    /// Only list what would run.
    #[arg(long, requires = "missing")]
    dry_run: bool,
}

/// A reason is for whoever reads the audit trail a year from now.
pub(super) fn reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("say why: it is kept in the audit trail".to_owned());
    }
    Ok(text.trim().to_owned())
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let replayed = match (&args.source, &args.key) {
        (Some(source), Some(key)) => vec![one(context, &args, source, key).await?],
        _ => missing(context, &args).await?,
    };
    if context.printer.json() {
        return context.printer.value(&replayed);
    }
    let word = if args.dry_run { "would run" } else { "ready" };
    for run in &replayed {
        context.printer.line(format_args!(
            "{word}: {} {} {} run {}, effect key {}",
            clean(&run.source),
            clean(&run.key),
            clean(&run.handler),
            run.run,
            run.effect_key
        ))?;
    }
    if args.missing {
        let events = words::count(replayed.len() as u64, "event", "events");
        context.printer.note(format_args!("{word}: {events}"));
    }
    Ok(())
}

async fn one(context: &Context, args: &Args, source: &str, key: &str) -> Result<Replayed, Failure> {
    let request = ReplayRequest {
        source: source.to_owned(),
        key: key.to_owned(),
        handler: args.handler.clone(),
        force: args.force,
        expected_run: args.expected_run,
        reason: args.reason.clone(),
        actor: context.actor(),
    };
    Ok(context.store()?.replay(&request).await?)
}

async fn missing(context: &Context, args: &Args) -> Result<Vec<Replayed>, Failure> {
    // Which events match is the configuration's word: the database does not know patterns.
    let config = context.config()?;
    let handler = config.handler(&args.handler).ok_or_else(|| {
        let names: Vec<_> = config.handlers.iter().map(|h| h.name.as_str()).collect();
        Failure::no(format!("no handler {:?} is configured", args.handler))
            .hint(format!("configured: {}", names.join(", ")))
    })?;
    let since = args.since.unwrap_or(Timestamp::MIN);
    Ok(context
        .store()?
        .replay_missing(
            &handler.name,
            &handler.events,
            since,
            args.dry_run,
            &args.reason,
            &context.actor(),
        )
        .await?)
}
