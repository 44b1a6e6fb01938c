//! `migrate`: brings the schema up to date.

use serde_json::json;

use crate::config::Config;
use crate::dispatch::HandlerKind;
use crate::store::{Settings, StoreError, ledger, migrate};

use super::context::Context;
use super::failure::Failure;

/// Bring the database's schema up to date.
///
/// Everything lives in schema `oncehook`, so it can share a database. A lock keeps two runs apart;
/// services of the version before go on working. In the databases of sql handlers that have their own,
/// the ledger of what was applied is made.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: oncehook migrate --dry-run")]
pub(super) struct Args {
    /// Only list what is pending.
    #[arg(long)]
    dry_run: bool,
    /// Only print what a sql handler's own database needs, for a role that may make it.
    #[arg(long, conflicts_with = "dry_run")]
    print_ledger: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    if args.print_ledger {
        return context.printer.line(ledger::INSTALL.trim_end());
    }
    let settings = context.settings()?;
    let (names, word) = if args.dry_run {
        (migrate::pending(&settings).await?, "pending")
    } else {
        (migrate::run(&settings).await?, "applied")
    };
    // The rest of the configuration need not be usable for the migrations.
    let ledgers = if let Ok(config) = context.config() {
        ledgers(&config, args.dry_run).await?
    } else {
        context.printer.note(
            "the databases of handlers are left alone: the configuration cannot be used, see `oncehook check`",
        );
        Vec::new()
    };
    if context.printer.json() {
        return context
            .printer
            .value(&json!({ word: names, "ledgers": ledgers }));
    }
    if names.is_empty() && ledgers.is_empty() {
        context
            .printer
            .note("nothing to do: the schema is up to date");
    }
    let ledgers = ledgers
        .iter()
        .map(|handler| format!("ledger in the database of {handler}"));
    names
        .into_iter()
        .chain(ledgers)
        .try_for_each(|name| context.printer.line(format_args!("{word} {name}")))
}

/// Makes the ledgers that are missing, or only looks for them; returns whose handlers' they are.
async fn ledgers(config: &Config, look: bool) -> Result<Vec<String>, Failure> {
    let mut made = Vec::new();
    for (handler, database) in databases(config) {
        let pending = if look {
            ledger::is_installed(database).await.map(|there| !there)
        } else {
            ledger::install(database).await
        };
        if pending.map_err(|error| failed(handler, error))? {
            made.push(handler.to_owned());
        }
    }
    Ok(made)
}

/// What was tried where a ledger could not be made or looked for.
pub(super) fn failed(handler: &str, error: StoreError) -> Failure {
    Failure::from(error).context(format!("ledger in the database of handler {handler:?}"))
}

/// The handlers with a database of their own.
pub(super) fn databases(config: &Config) -> impl Iterator<Item = (&str, &Settings)> {
    let operations = config.operations.iter();
    let handlers = config.handlers.iter().chain(operations);
    handlers.filter_map(|handler| match &handler.kind {
        HandlerKind::SqlElsewhere { database, .. } => Some((handler.name.as_str(), database)),
        _ => None,
    })
}
