//! `check`: explains a configuration.

mod report;

use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::json;

use crate::config::Config;
use crate::dispatch::HandlerKind;
use crate::store::ledger::OtherDatabase;
use crate::store::{Settings, Store, migrate};

use super::context::{self, Context};
use super::failure::Failure;
use super::words;

use report::{Database, Elsewhere, Report};

/// Explain the configuration and say everything that is wrong with it.
///
/// Lists sources, their secrets by label (never a value), handlers, and which events go where.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: oncehook check --connect")]
pub(super) struct Args {
    /// Also ask the databases: migrations applied, functions of sql handlers and their ledgers there.
    #[arg(long)]
    connect: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let config = match Config::load(&context.path()?, &context.environment) {
        Ok(config) => config,
        Err(error) => {
            let errors: Vec<_> = error.problems().iter().map(ToString::to_string).collect();
            return Err(invalid(context, &errors, error.into()));
        }
    };
    let settings = match context::settings(&config.database) {
        Ok(settings) => settings,
        Err(error) => {
            let errors = [error.to_string()];
            return Err(invalid(context, &errors, error.into()));
        }
    };
    let mut report = Report::of(&config, Timestamp::now());
    if args.connect {
        report.database = Some(ask(&config, settings).await?);
    }
    if context.printer.json() {
        context.printer.value(&report)?;
    } else {
        context.printer.line(report.text())?;
        for warning in &report.warnings {
            context.printer.note(format_args!("warning: {warning}"));
        }
    }
    match &report.database {
        Some(database) => verdict(context, database),
        None => Ok(()),
    }
}

fn invalid(context: &Context, errors: &[String], failure: Failure) -> Failure {
    if context.printer.json() {
        let written = context
            .printer
            .value(&json!({ "valid": false, "errors": errors }));
        if let Err(failure) = written {
            return failure;
        }
    }
    failure
}

async fn ask(config: &Config, settings: Settings) -> Result<Database, Failure> {
    let store = Store::new(settings.clone(), 1)?;
    store.check_pooling().await?;
    let pending = migrate::pending(&settings).await?;
    let mut calls = Vec::new();
    let mut others = Vec::new();
    for handler in &config.all_handlers() {
        match &handler.kind {
            HandlerKind::Sql { call } => calls.push(call.clone()),
            HandlerKind::SqlElsewhere { call, database } => {
                let other = OtherDatabase::new(database, &handler.name, call, 1)?;
                others.push((handler.name.clone(), other));
            }
            HandlerKind::Function(_)
            | HandlerKind::Http(_)
            | HandlerKind::External(_)
            | HandlerKind::Settle(_) => {}
        }
    }
    // Side by side, so that those that do not answer are waited for once.
    let elsewhere = join_all(others.into_iter().map(async |(handler, other)| Elsewhere {
        handler,
        problem: other.ready().await.err().map(|error| error.to_string()),
    }));
    let elsewhere = elsewhere.await;
    // Functions take an `oncehook.delivered`, which comes with the migrations.
    let missing_functions = if pending.is_empty() && !calls.is_empty() {
        store.missing_functions(&calls).await?
    } else {
        Vec::new()
    };
    Ok(Database {
        pending,
        missing_functions,
        elsewhere,
    })
}

fn verdict(context: &Context, database: &Database) -> Result<(), Failure> {
    if !database.pending.is_empty() {
        let n = words::count(
            database.pending.len() as u64,
            "migration is",
            "migrations are",
        );
        return Err(Failure::no(format!("{n} pending")).hint(format!(
            "run `{} migrate`",
            words::program(&context.environment)
        )));
    }
    if !database.missing_functions.is_empty() {
        return Err(Failure::no(format!(
            "the database has no function {}",
            database.missing_functions.join(", ")
        ))
        .hint(
            "a sql handler calls schema.function(event oncehook.delivered) returning void or jsonb",
        ));
    }
    let wrong: Vec<String> = database
        .elsewhere
        .iter()
        .filter_map(Elsewhere::wrong)
        .collect();
    if !wrong.is_empty() {
        return Err(Failure::no(wrong.join("\n")));
    }
    Ok(())
}
