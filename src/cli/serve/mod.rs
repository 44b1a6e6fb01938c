//! `serve`: receives webhooks and runs handlers until it is told to stop.

pub(super) mod node;
pub(super) mod signals;

use std::io::IsTerminal as _;

use futures_util::future::join_all;

use crate::config::{Config, LogFormat};
use crate::store::transaction::is_connection_error;
use crate::store::{Settings, Store, ledger, migrate};
use crate::telemetry::logs::{self, Form};

use super::context::{self, Context};
use super::failure::Failure;
use super::migrate as migrate_verb;
use super::words;

use node::{Node, Origin};
use signals::Signals;

/// Receive webhooks and run handlers.
///
/// SIGTERM or Ctrl-C: /readyz answers 503, requests are still accepted for listen.drain, handlers
/// have dispatch.grace to end; a second signal leaves at once. SIGHUP reads sources, handlers and
/// secrets anew; if anything is wrong, what was stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: oncehook serve --config /etc/oncehook.toml --migrate")]
pub(super) struct Args {
    /// Bring the database's schema up to date first.
    #[arg(long)]
    migrate: bool,
    /// Print one line of JSON with the addresses to stdout when listening.
    #[arg(long, hide = true)]
    announce: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let path = context.path()?;
    let config = Config::load(&path, &context.environment)?;
    start_log(context, &config)?;
    for warning in &config.warnings {
        tracing::warn!(target: "oncehook", "configuration: {warning}");
    }
    let mut signals = Signals::listen()?;
    let start = async {
        let settings = context::settings(&config.database)?;
        let store = Store::new(settings.clone(), config.dispatch.connections)?;
        store.check_pooling().await?;
        up_to_date(context, &settings, args.migrate).await?;
        if args.migrate {
            make_ledgers(&config).await?;
        }
        Node::start(&config, store).await
    };
    let node = tokio::select! {
        // Nothing has been acknowledged yet, so there is nothing to wait for.
        () = signals.stop() => return Ok(()),
        node = start => node?,
    };
    tracing::info!(
        target: "oncehook",
        public = %node.public(),
        api = %node.api(),
        sources = config.sources.len(),
        handlers = config.handlers.len(),
        "serving"
    );
    if args.announce {
        node.announce(context.printer)?;
    }
    node.run(&mut signals, Origin { path, config }).await
}

/// Sets the log up as configured; `RUST_LOG` wins over the level.
pub(super) fn start_log(context: &Context, config: &Config) -> Result<(), Failure> {
    let filter = context
        .environment
        .get("RUST_LOG")
        .unwrap_or(&config.log.level);
    let form = match config.log.format {
        LogFormat::Text => Form::Text,
        LogFormat::Auto if std::io::stderr().is_terminal() => Form::Text,
        LogFormat::Json | LogFormat::Auto => Form::Json,
    };
    logs::start(filter, form).map_err(|error| Failure::usage(error.to_string()))
}

/// In the databases of sql handlers that have their own. Receiving does not wait for one that is down.
async fn make_ledgers(config: &Config) -> Result<(), Failure> {
    let made = migrate_verb::databases(config)
        .map(async |(handler, database)| (handler, ledger::install(database).await));
    // Side by side: those whose hosts do not answer delay the start once.
    for (handler, made) in join_all(made).await {
        match made {
            Ok(made) => {
                if made {
                    tracing::info!(target: "oncehook", handler, "ledger made in its database");
                }
            }
            Err(error) if is_connection_error(&error) => {
                tracing::error!(target: "oncehook", handler, error = %error, "no ledger made: its database is not reached");
            }
            Err(error) => return Err(migrate_verb::failed(handler, error)),
        }
    }
    Ok(())
}

async fn up_to_date(context: &Context, settings: &Settings, apply: bool) -> Result<(), Failure> {
    if apply {
        for name in migrate::run(settings).await? {
            tracing::info!(target: "oncehook", migration = %name, "migration applied");
        }
        return Ok(());
    }
    let pending = migrate::pending(settings).await?;
    if pending.is_empty() {
        return Ok(());
    }
    Err(Failure::no(format!(
        "the database's schema is not up to date: {} pending",
        pending.join(", ")
    ))
    .hint(format!(
        "run `{0} migrate`, or start with `{0} serve --migrate`",
        words::program(&context.environment)
    )))
}
