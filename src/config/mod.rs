//! The configuration file: TOML text in, checked plain values out.
//!
//! An unknown key is an error with the nearest name. Everything that is wrong is said at once,
//! with its line, its source and its label, never with a secret's value. Nothing here speaks to
//! the database or the network.
//!
//! `docs/oncehook.toml` lists every option; its scalar tables are compiled in as the defaults.

mod basics;
mod document;
pub mod environment;
mod error;
mod handler;
mod operation;
mod problem;
mod secret;
mod section;
mod source;
mod target;
pub mod units;

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::dispatch::{DispatchConfig, HandlerSpec};
use crate::domain::{Pattern, SecretText};
use crate::engine::EngineConfig;
use crate::ingest::IngestConfig;
use crate::provider::Source;

pub use basics::{Database, Dispatch, Limits, Listen, Log, LogFormat, Pooling};
pub use environment::Environment;
pub use error::ConfigError;
pub use problem::{Origin, Problem};
pub use source::SourceSettings;

use document::Table;
use problem::Problems;
use secret::Vault;
use section::Section;

/// Every option with its comment and default: the text in `docs/`, and the truth in use.
pub const REFERENCE: &str = include_str!("../../docs/oncehook.toml");

/// A configuration that can be run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file it was read from.
    pub path: PathBuf,
    /// `[database]`.
    pub database: Database,
    /// `[listen]`.
    pub listen: Listen,
    /// `[[source]]`.
    pub sources: Vec<SourceSettings>,
    /// `[[handler]]`.
    pub handlers: Vec<HandlerSpec>,
    /// `[[operation]]`: the handlers that do them.
    pub operations: Vec<HandlerSpec>,
    /// `[limits]`.
    pub limits: Limits,
    /// `[dispatch]`.
    pub dispatch: Dispatch,
    /// `[log]`.
    pub log: Log,
    /// What works, but is probably not meant.
    pub warnings: Vec<Problem>,
}

impl Config {
    /// Reads and checks a file. Variables `ONCEHOOK_<TABLE>__<KEY>` win over its scalar tables.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with everything that is wrong; nothing of it may be used.
    pub fn load(path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let text = read(path)?;
        Self::parse(&text, path, environment)
    }

    /// Checks a text as if it were read from `path`.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let problems = Problems::default();
        let config = assemble(text, path, environment, &problems);
        let failed = problems.any();
        let (errors, warnings) = problems.into_parts();
        match config {
            Some(config) if !failed => Ok(Self { warnings, ..config }),
            _ => Err(ConfigError::invalid(path, errors)),
        }
    }

    /// What the engine runs with.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            sources: self.plain_sources(),
            handlers: self.all_handlers(),
            ingest: IngestConfig {
                queue_bytes: self.limits.queue,
                ..IngestConfig::default()
            },
            dispatch: self.dispatch.enabled.then_some(DispatchConfig {
                poll: self.dispatch.poll,
                grace: self.dispatch.grace,
                connections: self.dispatch.connections,
            }),
            waiting: Some(self.limits.waiting),
        }
    }

    /// The sources without what only the command line needs; the engine makes those of operations.
    pub fn plain_sources(&self) -> Vec<Source> {
        self.sources.iter().map(|s| s.source.clone()).collect()
    }

    /// The handlers, and those that do operations.
    pub fn all_handlers(&self) -> Vec<HandlerSpec> {
        [self.handlers.as_slice(), &self.operations].concat()
    }

    /// The source of this name.
    pub fn source(&self, name: &str) -> Option<&SourceSettings> {
        self.sources.iter().find(|s| s.source.name == name)
    }

    /// The handler of this name.
    pub fn handler(&self, name: &str) -> Option<&HandlerSpec> {
        self.handlers.iter().find(|h| h.name == name)
    }
}

/// Only `[database]`: what the verbs that ask the database need. Sources and their secrets need
/// not be there; without a file, `ONCEHOOK_DATABASE__URL` is enough.
///
/// # Errors
///
/// [`ConfigError`] when the file is no TOML or the URL cannot be had.
pub fn database(path: Option<&Path>, environment: &Environment) -> Result<Database, ConfigError> {
    let text = path.map(read).transpose()?.unwrap_or_default();
    let path = path.unwrap_or(Path::new("the environment"));
    let problems = Problems::default();
    let table = tables(&text, environment, &problems);
    let root = Section::new(&table, Origin::File, "", &problems);
    let database = basics::database(&root, vault(path, environment));
    let failed = problems.any();
    match database {
        Some(database) if !failed => Ok(database),
        _ => Err(ConfigError::invalid(path, problems.into_parts().0)),
    }
}

/// A secret given by hand: `env:NAME`, `file:PATH` or the text itself.
///
/// # Errors
///
/// A sentence that names the variable or the file.
pub fn secret_text(written: &str, environment: &Environment) -> Result<SecretText, String> {
    vault(Path::new(""), environment).resolve(written)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

fn vault<'a>(path: &'a Path, environment: &'a Environment) -> Vault<'a> {
    Vault {
        environment,
        folder: path.parent().unwrap_or(Path::new("")),
    }
}

/// The file over the defaults, and the variables over the file.
fn tables(text: &str, environment: &Environment, problems: &Problems) -> Table {
    let defaults = document::parse(REFERENCE, problems);
    let mut root = document::parse(text, problems);
    document::override_with(&mut root, environment);
    document::over_defaults(root, defaults)
}

fn assemble(
    text: &str,
    path: &Path,
    environment: &Environment,
    problems: &Problems,
) -> Option<Config> {
    let now = Timestamp::now();
    let table = tables(text, environment, problems);
    let root = Section::new(&table, Origin::File, "", problems);
    let vault = vault(path, environment);
    let database = basics::database(&root, vault);
    let listen = basics::listen(&root);
    let limits = basics::limits(&root);
    let dispatch = basics::dispatch(&root);
    let log = basics::log(&root);
    let sources = source::read_all(&root, vault, now);
    let (handlers, settling) = handler::read_all(&root, vault, now);
    let (operations, names) = operation::read_all(&root, vault, now, &sources, &handlers);
    let all = [handlers.as_slice(), operations.as_slice()].concat();
    settling.check(&root, &all, &names);
    check_names(&root, &sources, &handlers, &operations);
    check_routes(&root, &sources, &handlers);
    root.finish();
    Some(Config {
        path: path.to_owned(),
        database: database?,
        listen: listen?,
        sources,
        handlers,
        operations,
        limits: limits?,
        dispatch: dispatch?,
        log: log?,
        warnings: Vec::new(),
    })
}

fn check_names(
    root: &Section<'_>,
    sources: &[SourceSettings],
    handlers: &[HandlerSpec],
    operations: &[HandlerSpec],
) {
    let names: Vec<_> = sources
        .iter()
        .map(|s| (s.source.name.clone(), s.source.was.clone()))
        .collect();
    source::check_was(root, "source", &names);
    for (what, list) in [("handler", handlers), ("operation", operations)] {
        let names: Vec<_> = list
            .iter()
            .map(|h| (h.name.clone(), h.was.clone()))
            .collect();
        source::check_was(root, what, &names);
    }
}

/// Warns about patterns that no source can feed, and sources that feed nobody.
fn check_routes(root: &Section<'_>, sources: &[SourceSettings], handlers: &[HandlerSpec]) {
    if root.problems().any() {
        return; // A source left out because of its errors would only be reported twice.
    }
    for handler in handlers {
        for pattern in &handler.events {
            if !sources.iter().any(|s| feeds(pattern, &s.source.name)) {
                root.problems().warning(
                    &Origin::File,
                    &format!("handler {:?}", handler.name),
                    format!(
                        "`events` holds \"{pattern}\", but no configured source has such a name"
                    ),
                );
            }
        }
    }
    for source in sources {
        let name = &source.source.name;
        if !handlers
            .iter()
            .any(|h| h.events.iter().any(|p| feeds(p, name)))
        {
            root.problems().warning(
                &Origin::File,
                &format!("source {name:?}"),
                "no handler takes its events: they are stored as unrecognized",
            );
        }
    }
}

/// Whether the source side of a pattern takes this source.
pub fn feeds(pattern: &Pattern, source: &str) -> bool {
    Pattern::parse(&format!("{}:*", pattern.source())).is_ok_and(|p| p.takes(source, None))
}

#[cfg(test)]
mod tests;
