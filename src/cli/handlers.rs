//! `handlers retire`: ends a handler for good.

use clap::Subcommand;
use serde_json::json;

use super::context::Context;
use super::failure::Failure;
use super::{replay, words};

/// Manage handlers.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
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
    let Verb::Retire { name, reason } = args.verb;
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
