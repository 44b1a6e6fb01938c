//! What every verb needs: the configuration, the database, the printer.

use std::path::{Path, PathBuf};

use crate::config::{self, Config, Database, Environment, Pooling};
use crate::domain::SecretText;
use crate::store::{Settings, Store, StoreError};

use super::failure::Failure;
use super::printer::Printer;
use super::words;

/// Looked for in the current folder, in this order.
const FILES: [&str; 2] = ["oncehook.toml", ".oncehook/dev.toml"];

/// What every verb needs.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) printer: Printer,
    pub(super) environment: Environment,
    file: Option<PathBuf>,
}

impl Context {
    pub(super) fn new(printer: Printer, file: Option<PathBuf>) -> Self {
        Self {
            printer,
            environment: Environment::of_process(),
            file,
        }
    }

    /// The configuration file: named, or found.
    pub(super) fn path(&self) -> Result<PathBuf, Failure> {
        self.found().ok_or_else(|| {
            Failure::usage(
                "there is no configuration: neither ./oncehook.toml nor ./.oncehook/dev.toml",
            )
            .hint(format!(
                "name one with --config FILE or ONCEHOOK_CONFIG, or let `{} dev` write a sample",
                words::program(&self.environment)
            ))
        })
    }

    fn found(&self) -> Option<PathBuf> {
        let here = || FILES.iter().map(PathBuf::from).find(|path| path.is_file());
        self.file.clone().or_else(here)
    }

    /// The whole configuration, checked.
    pub(super) fn config(&self) -> Result<Config, Failure> {
        Ok(Config::load(&self.path()?, &self.environment)?)
    }

    /// Where the database is. The rest of the configuration need not be usable for this.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let path = self.found();
        if path.is_none() && self.environment.get("ONCEHOOK_DATABASE__URL").is_none() {
            self.path()?;
        }
        let database = config::database(path.as_deref().map(Path::new), &self.environment)?;
        Ok(settings(&database)?)
    }

    /// The database.
    pub(super) fn store(&self) -> Result<Store, Failure> {
        Ok(Store::new(self.settings()?, 1)?)
    }

    /// The database, for reading alone: a standby will do.
    pub(super) fn reading_store(&self) -> Result<Store, Failure> {
        Ok(Store::new(self.settings()?.for_reading(), 1)?)
    }

    /// Who acts, for `audit`.
    pub(super) fn actor(&self) -> String {
        let user = ["USER", "LOGNAME", "USERNAME"]
            .iter()
            .find_map(|name| self.environment.get(name))
            .unwrap_or("unknown");
        format!("cli:{}", crate::telemetry::clean(user))
    }
}

/// How `[database]` connects.
pub(super) fn settings(database: &Database) -> Result<Settings, StoreError> {
    let settings = Settings::parse(database.url.expose())?;
    match database.pooling {
        Pooling::Session => Ok(settings),
        Pooling::Transaction => {
            settings.pooled_by_transaction(database.direct_url.as_ref().map(SecretText::expose))
        }
    }
}
