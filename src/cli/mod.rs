//! The command line: one file per verb.
//!
//! Data goes to stdout, the rest to stderr. Every verb that reads or changes events speaks to the
//! database itself, so it works while the service is down.

mod check;
mod context;
mod dev;
mod events;
mod failure;
mod handlers;
mod health;
mod migrate;
mod operations;
mod printer;
mod replay;
mod resolve;
mod serve;
mod service;
mod show;
mod simulate;
mod sources;
mod token;
mod verify;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use context::Context;
use failure::{Exit, Failure};
use printer::Printer;

const EXAMPLES: &str = "\
Begin:
  oncehook dev
  oncehook simulate stripe-main payment_intent.succeeded     (in a second terminal)

Exit codes:
  0  done
  1  the answer is no: not found, refused, migrations pending, not acknowledged
  2  the command line or the configuration cannot be used
  3  the database or the service cannot be reached; verify: not everything could be checked
  4  verify: an invariant does not hold
  5  verify: nothing is broken, something needs a look";

/// A webhook inbox for payments: verified, stored once, handled exactly once, on PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "oncehook", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// Configuration file [default: ./oncehook.toml, else the one `dev` wrote: ./.oncehook/dev.toml].
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "ONCEHOOK_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
    /// Write JSON to stdout, for machines.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

/// What each does stands at its arguments.
#[derive(Debug, Subcommand)]
enum Verb {
    Dev(dev::Args),
    Serve(serve::Args),
    Migrate(migrate::Args),
    Check(check::Args),
    Simulate(simulate::Args),
    Events(events::Args),
    Show(show::Args),
    Replay(replay::Args),
    Resolve(resolve::Args),
    Operations(operations::Args),
    Handlers(handlers::Args),
    Sources(sources::Args),
    Token(token::Args),
    Verify(verify::Args),
    Health(health::Args),
}

/// Parses the command line, runs the verb and says how it went.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let printer = Printer::new(cli.json);
    let context = Context::new(printer, cli.config);
    // Whoever opens TLS connections finds it here; a second installation is no error.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return Failure::new(Exit::No, error).report(printer),
    };
    let result = runtime.block_on(run(cli.verb, &context));
    // Detached work has been waited for where it matters.
    runtime.shutdown_timeout(Duration::from_millis(100));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(printer),
    }
}

async fn run(verb: Verb, context: &Context) -> Result<(), Failure> {
    match verb {
        Verb::Dev(args) => Box::pin(dev::run(context, args)).await,
        Verb::Serve(args) => serve::run(context, args).await,
        Verb::Migrate(args) => migrate::run(context, args).await,
        Verb::Check(args) => check::run(context, args).await,
        Verb::Simulate(args) => simulate::run(context, args).await,
        Verb::Events(args) => events::run(context, args).await,
        Verb::Show(args) => show::run(context, args).await,
        Verb::Replay(args) => replay::run(context, args).await,
        Verb::Resolve(args) => resolve::run(context, args).await,
        Verb::Operations(args) => operations::run(context, args).await,
        Verb::Handlers(args) => handlers::run(context, args).await,
        Verb::Sources(args) => sources::run(context, args).await,
        Verb::Token(args) => token::run(context, args).await,
        Verb::Verify(args) => verify::run(context, args).await,
        Verb::Health(args) => health::run(context, args).await,
    }
}

#[cfg(test)]
mod tests;
