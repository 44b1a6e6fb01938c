//! `replay`: a new run, by command.

mod bulks;
mod many;

use std::time::Instant;

use jiff::Timestamp;
use uuid::Uuid;

use crate::store::query::Replayed;
use crate::store::{MissingOrder, ReplayRequest};
use crate::telemetry::clean;

use super::context::Context;
use super::failure::Failure;
use super::words;
use many::PROGRESS;

const EXAMPLES: &str = "Examples:\n\
    \x20 oncehook replay stripe-main evt_1 --handler ledger --reason 'account 42 was missing'\n\
    \x20 oncehook replay --missing --handler ledger --since 7d --dry-run --reason 'handler is new'\n\
    \x20 oncehook replay --all stripe-main --handler ledger --since 2d --reason 'account was closed'\n\
    \x20 oncehook replay --all --every-handler --since 2d --rate 20 --reason 'outage of the ledger' --yes\n\
    \x20 oncehook replay --list\n\
    \x20 oncehook replay --stop 7 --reason 'the receiver is slow'\n\
    \x20 oncehook replay --continue 7 --reason 'it has recovered'";

/// Run a handler again for an event, for many, or for the events it missed.
///
/// Refused while a run is live, and while a call that nobody knows the end of may be. A dead letter keeps its effect key. A run that succeeded is only
/// repeated with --force, under a new effect key: outside effects happen again.
///
/// With --all: every finished run that fits, as one bulk with a number. Without --yes it only counts. It means
/// what had finished when it began; interrupted, it goes on by its number, by `serve` or by --continue. --stop
/// stops it everywhere; what it made ready until then still runs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Source name. With --all: only this one's events.
    #[arg(required_unless_present_any = ["missing", "all", "bulk"], conflicts_with = "missing")]
    source: Option<String>,
    /// Event key, or the provider's event id where only one event has it.
    #[arg(required_unless_present_any = ["missing", "all", "bulk"], conflicts_with_all = ["missing", "all", "bulk"])]
    key: Option<String>,
    /// Handler to run.
    #[arg(long, required_unless_present_any = ["every_handler", "bulk"], conflicts_with = "bulk")]
    handler: Option<String>,
    /// Why; kept in the audit trail.
    #[arg(long, value_parser = reason, required_unless_present_any = ["list", "show"])]
    reason: Option<String>,
    /// Also when it succeeded: a new effect key, so outside effects happen again.
    #[arg(long, conflicts_with_all = ["missing", "bulk"])]
    force: bool,
    /// Only if this is the number of the last run.
    #[arg(long, value_name = "N", conflicts_with_all = ["missing", "all", "bulk"])]
    expected_run: Option<i16>,
    /// Every matching event that has neither a delivery nor an outcome for the handler.
    #[arg(long, requires = "since")]
    missing: bool,
    #[command(flatten)]
    many: many::Filter,
    /// Received since then: "2026-12-01T00:00:00Z", or an age such as "24h".
    #[arg(long, value_name = "WHEN", value_parser = words::since)]
    since: Option<Timestamp>,
    /// Only list what would run.
    #[arg(long, requires = "missing")]
    dry_run: bool,
}

impl Args {
    /// Empty where none is asked for: nothing is changed there.
    fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_default()
    }
}

/// A reason is for whoever reads the audit trail a year from now.
pub(super) fn reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("say why: it is kept in the audit trail".to_owned());
    }
    Ok(text.trim().to_owned())
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    if args.many.all {
        return many::run(context, &args).await;
    }
    if args.many.list {
        return bulks::list(context).await;
    }
    if let Some(bulk) = args.many.show {
        return bulks::show(context, bulk).await;
    }
    if let Some((bulk, word)) = args.many.word() {
        return many::say(context, &args, bulk, word).await;
    }
    if args.since.is_some() && !args.missing {
        return Err(Failure::usage("--since belongs to --missing and to --all"));
    }
    let (Some(source), Some(key)) = (&args.source, &args.key) else {
        return missing(context, &args).await;
    };
    let replayed = one(context, &args, source, key).await?;
    if context.printer.json() {
        return context.printer.value(&[replayed]);
    }
    context.printer.line(line("ready", &replayed))
}

fn line(word: &str, run: &Replayed) -> String {
    format!(
        "{word}: {} {} {} run {}, effect key {}",
        clean(&run.source),
        clean(&run.key),
        clean(&run.handler),
        run.run,
        run.effect_key
    )
}

async fn one(context: &Context, args: &Args, source: &str, key: &str) -> Result<Replayed, Failure> {
    let request = ReplayRequest {
        source: source.to_owned(),
        key: key.to_owned(),
        handler: args.handler.clone().unwrap_or_default(),
        force: args.force,
        expected_run: args.expected_run,
        reason: args.reason().to_owned(),
        actor: context.actor(),
    };
    Ok(context.store()?.replay(&request).await?)
}

async fn missing(context: &Context, args: &Args) -> Result<(), Failure> {
    // Which events match is the configuration's word: the database does not know patterns.
    let config = context.config()?;
    let name = args.handler.as_deref().unwrap_or_default();
    let handler = config.handler(name).ok_or_else(|| {
        let names: Vec<_> = config.handlers.iter().map(|h| h.name.as_str()).collect();
        Failure::no(format!("no handler {name:?} is configured"))
            .hint(format!("configured: {}", names.join(", ")))
    })?;
    let order = MissingOrder {
        handler: handler.name.clone(),
        patterns: handler.events.clone(),
        since: args.since.unwrap_or(Timestamp::MIN),
        dry_run: args.dry_run,
        reason: args.reason().to_owned(),
        actor: context.actor(),
    };
    let (store, json) = (context.store()?, context.printer.json());
    let word = if args.dry_run { "would run" } else { "ready" };
    let (mut after, mut told) = (Uuid::nil(), Instant::now());
    let mut replayed = Vec::new();
    loop {
        let page = store.missing_page(&order, after).await;
        let page = page.map_err(|error| stays(error.into(), word, &replayed))?;
        if !json {
            for run in &page.replayed {
                context.printer.line(line(word, run))?;
            }
        }
        let reached = page.reached();
        replayed.extend(page.replayed);
        let Some(last) = page.next else { break };
        after = last;
        if let Some(reached) = reached
            && told.elapsed() >= PROGRESS
        {
            told = Instant::now();
            context.printer.note(format_args!(
                "{word}: {} so far; looked at what was received until {}",
                replayed.len(),
                words::moment(reached)
            ));
        }
    }
    if json {
        return context.printer.value(&replayed);
    }
    let events = words::count(replayed.len() as u64, "event", "events");
    context.printer.note(format_args!("{word}: {events}"));
    Ok(())
}

/// What was made before an error stays, and is not made again.
fn stays(failure: Failure, word: &str, before: &[Replayed]) -> Failure {
    if word != "ready" || before.is_empty() {
        return failure;
    }
    let made = words::count(before.len() as u64, "first run is", "first runs are");
    failure.hint(format!(
        "{made} ready; the same command goes on with the others"
    ))
}
