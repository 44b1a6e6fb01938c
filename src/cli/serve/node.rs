//! An engine with its listeners, from start to graceful end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::config::{Config, ConfigError, Environment, Listen};
use crate::engine::Engine;
use crate::http::{self, Running, ServeConfig, ServeError};
use crate::store::Store;
use crate::telemetry;

use super::super::failure::{Exit, Failure};
use super::super::printer::Printer;
use super::signals::{Signals, Wish};

/// How long requests in flight may take to end once no new ones are accepted. A commit answers
/// within 2 s; what is still being sent comes again.
const REQUEST_GRACE: Duration = Duration::from_secs(5);

/// How often histograms are emptied into their buckets, so that they do not grow while nobody
/// reads `/metrics`.
const UPKEEP: Duration = Duration::from_secs(5);

/// Where the configuration came from, to be read anew on SIGHUP.
#[derive(Debug)]
pub(in crate::cli) struct Origin {
    pub(in crate::cli) path: PathBuf,
    pub(in crate::cli) config: Config,
}

/// An engine with its listeners.
#[derive(Debug)]
pub(in crate::cli) struct Node {
    engine: Engine,
    running: Running,
}

impl Node {
    /// Starts the engine, then the listeners: nothing is accepted before it can be stored.
    pub(in crate::cli) async fn start(config: &Config, store: Store) -> Result<Self, Failure> {
        // Before the engine, so that its first counts are recorded.
        let metrics = telemetry::metrics::prometheus();
        let upkeep = metrics.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        let engine = Engine::start(store, config.engine()).await?;
        let listen = ServeConfig {
            public: config.listen.public,
            api: config.listen.api,
            body_bytes: config.limits.body,
            header_bytes: config.limits.headers,
            body_time: config.limits.body_time,
            metrics: Some(metrics),
        };
        match http::serve(engine.clone(), listen).await {
            Ok(running) => Ok(Self { engine, running }),
            Err(error) => {
                engine.shutdown().await;
                Err(not_served(error, &config.listen))
            }
        }
    }

    pub(in crate::cli) fn public(&self) -> SocketAddr {
        self.running.public_addr()
    }

    pub(in crate::cli) fn api(&self) -> SocketAddr {
        self.running.api_addr()
    }

    /// Prints the addresses as one line of JSON, for programs that start this one.
    pub(in crate::cli) fn announce(&self, printer: Printer) -> Result<(), Failure> {
        printer
            .value(&json!({ "public": self.public().to_string(), "api": self.api().to_string() }))
    }

    /// Runs until a signal, then ends gracefully.
    pub(in crate::cli) async fn run(
        mut self,
        signals: &mut Signals,
        mut origin: Origin,
    ) -> Result<(), Failure> {
        let failed = loop {
            tokio::select! {
                wish = signals.next() => match wish {
                    Wish::Stop => break None,
                    Wish::Reload => reload(&self.engine, &mut origin).await,
                },
                error = self.running.ended() => break Some(error),
            }
        };
        tracing::info!(target: "oncehook", "stopping");
        let drain = match failed {
            Some(_) => Duration::ZERO,
            None => origin.config.listen.drain,
        };
        tokio::select! {
            () = self.stop(drain) => {}
            () = signals.stop() => {
                tracing::warn!(target: "oncehook", "second signal: leaving at once");
                return Err(Failure::no("left at once; what was running will be run again when its lease has ended"));
            }
        }
        tracing::info!(target: "oncehook", "stopped");
        match failed {
            Some(error) => Err(Failure::new(Exit::No, error).context("a listener has ended")),
            None => Ok(()),
        }
    }

    async fn stop(self, drain: Duration) {
        self.engine.drain();
        tokio::time::sleep(drain).await;
        self.running.stop(REQUEST_GRACE).await;
        self.engine.shutdown().await;
    }
}

fn not_served(error: ServeError, listen: &Listen) -> Failure {
    match error {
        ServeError::Store(error) => error.into(),
        ServeError::NoToken(_) => Failure::new(Exit::No, error).hint(
            "`oncehook token create NAME --role read` makes one, also while the service is down; or set listen.api to 127.0.0.1:8081",
        ),
        error => Failure::new(Exit::No, error)
            .context(format!(
                "cannot listen on {} and {}",
                listen.public, listen.api
            ))
            .hint("listen.public and listen.api name the addresses; is another program on one of them?"),
    }
}

/// Swaps sources and handlers; whatever is wrong, the old ones stay.
async fn reload(engine: &Engine, origin: &mut Origin) {
    let config = match Config::load(&origin.path, &Environment::of_process()) {
        Ok(config) => config,
        Err(error) => return log_refused(&error),
    };
    match engine
        .reload(config.plain_sources(), config.all_handlers())
        .await
    {
        Ok(()) => {}
        Err(error) => {
            tracing::error!(target: "oncehook", error = %error, "configuration not reloaded, the old one stays");
            return;
        }
    }
    for warning in &config.warnings {
        tracing::warn!(target: "oncehook", "configuration: {warning}");
    }
    let old = &origin.config;
    for (table, same) in [
        ("[database]", old.database == config.database),
        ("[listen]", old.listen == config.listen),
        ("[limits]", old.limits == config.limits),
        ("[dispatch]", old.dispatch == config.dispatch),
        ("[log]", old.log == config.log),
    ] {
        if !same {
            tracing::warn!(target: "oncehook", table, "changed, but takes effect only at the next start");
        }
    }
    tracing::info!(
        target: "oncehook",
        sources = config.sources.len(),
        handlers = config.handlers.len(),
        operations = config.operations.len(),
        "configuration reloaded"
    );
    // The tables that did not take effect stay as they are at work.
    origin.config.sources = config.sources;
    origin.config.handlers = config.handlers;
    origin.config.operations = config.operations;
}

fn log_refused(error: &ConfigError) {
    if error.problems().is_empty() {
        tracing::error!(target: "oncehook", "configuration not reloaded, the old one stays: {error}");
    }
    for problem in error.problems() {
        tracing::error!(target: "oncehook", "configuration not reloaded, the old one stays: {problem}");
    }
}
