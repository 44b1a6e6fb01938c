//! `handlers list`, `pause` and `resume`; `handlers retire` ends one for good.

use clap::Subcommand;
use serde_json::json;

use crate::store::flow::Pausable;
use crate::telemetry::clean;

use super::context::Context;
use super::failure::Failure;
use super::sources::{Switch, standing, switch};
use super::{replay, words};

/// List handlers, hold them back, end them.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List every handler, with its pause and its open work.
    ///
    /// What is due is counted up to 10,000 per priority, what is under way, uncertain or held up to 10,000.
    /// `events --state uncertain` and `--state held` name what a person may have to decide. Where a breaker stands is each node's own affair:
    /// `GET /v1/handlers` and the metrics tell.
    List,
    /// Begin nothing of a handler until `resume`.
    ///
    /// Its deliveries wait. What is under way ends normally. Every node follows within one poll.
    #[command(
        after_help = "Example: oncehook handlers pause fulfilment --reason 'their database is restored'"
    )]
    Pause(Switch),
    /// Begin a handler's deliveries again, those that waited first.
    #[command(after_help = "Example: oncehook handlers resume fulfilment")]
    Resume(Switch),
    /// End a handler's unfinished deliveries as cancelled and mark it retired.
    ///
    /// Take it out of the configuration of every node first.
    #[command(
        after_help = "Example: oncehook handlers retire old-ledger --reason 'replaced by ledger'"
    )]
    Retire {
        /// Handler name.
        name: String,
        /// Why; kept in the audit trail.
        #[arg(long, value_parser = replay::reason)]
        reason: String,
    },
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let (name, reason) = match args.verb {
        Verb::List => return list(context).await,
        Verb::Pause(wanted) => return switch(context, Pausable::Handler, &wanted, true).await,
        Verb::Resume(wanted) => return switch(context, Pausable::Handler, &wanted, false).await,
        Verb::Retire { name, reason } => (name, reason),
    };
    // An unusable configuration must not keep anybody from retiring a handler.
    if context
        .config()
        .is_ok_and(|config| config.handler(&name).is_some())
    {
        return Err(
            Failure::no(format!("handler {name:?} is still configured")).hint(
                "take it out of the configuration and restart or reload every node, then retire it",
            ),
        );
    }
    let cancelled = context
        .store()?
        .retire_handler(&name, &reason, &context.actor())
        .await?;
    if context.printer.json() {
        return context
            .printer
            .value(&json!({ "handler": name, "cancelled": cancelled }));
    }
    context.printer.line(format_args!(
        "retired {name}: {} cancelled",
        words::count(cancelled, "delivery", "deliveries")
    ))
}

async fn list(context: &Context) -> Result<(), Failure> {
    let handlers = context.store()?.handlers().await?;
    if context.printer.json() {
        return context.printer.value(&handlers);
    }
    for handler in &handlers {
        context.printer.line(format_args!(
            "{:<24} {}, {} due, {} under way, {} uncertain, {} held",
            clean(&handler.name),
            standing(handler.paused.as_ref()),
            handler.due,
            handler.leased,
            handler.uncertain,
            handler.held
        ))?;
    }
    Ok(())
}
