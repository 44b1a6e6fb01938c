//! `migrate`: brings the schema up to date.

use serde_json::json;

use crate::store::migrate;

use super::context::Context;
use super::failure::Failure;

/// Bring the database's schema up to date.
///
/// Everything lives in schema `oncehook`, so it can share a database. A lock keeps two runs apart;
/// services of the version before go on working.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: oncehook migrate --dry-run")]
pub(super) struct Args {
    /// Only list what is pending.
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let settings = context.settings()?;
    let (names, word) = if args.dry_run {
        (migrate::pending(&settings).await?, "pending")
    } else {
        (migrate::run(&settings).await?, "applied")
    };
    if context.printer.json() {
        return context.printer.value(&json!({ word: names }));
    }
    if names.is_empty() {
        context
            .printer
            .note("nothing to do: the schema is up to date");
    }
    names
        .iter()
        .try_for_each(|name| context.printer.line(format_args!("{word} {name}")))
}
