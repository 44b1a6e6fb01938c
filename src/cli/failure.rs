//! Why a verb ends without its work: cause, chain, `hint:` and exit code.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::Value;
use tokio_postgres::error::SqlState;

use crate::config::ConfigError;
use crate::engine::EngineError;
use crate::store::StoreError;

use super::printer::Printer;

/// What the process answers to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// Whoever read our output has gone: no failure.
    Quiet = 0,
    /// Not found, refused, not as it should be.
    No = 1,
    /// The command line or the configuration cannot be used.
    Usage = 2,
    /// The database or the service cannot be reached, or did not answer everything.
    Unreachable = 3,
    /// An invariant does not hold.
    Broken = 4,
    /// Nothing is broken, but a person should look.
    Warning = 5,
}

/// A failed verb.
#[derive(Debug)]
pub(super) struct Failure {
    exit: Exit,
    error: anyhow::Error,
    hint: Option<String>,
}

impl Failure {
    pub(super) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self {
            exit,
            error: error.into(),
            hint: None,
        }
    }

    /// The answer is no.
    pub(super) fn no(message: impl Into<String>) -> Self {
        Self::new(Exit::No, anyhow::Error::msg(message.into()))
    }

    /// The command line cannot be used.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, anyhow::Error::msg(message.into()))
    }

    pub(super) fn stdout(error: io::Error) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::BrokenPipe => Exit::Quiet,
            _ => Exit::No,
        };
        Self::new(
            exit,
            anyhow::Error::new(error).context("cannot write to stdout"),
        )
    }

    /// Says what to do about it; the first hint, nearest to the cause, stays.
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// Says what was tried.
    pub(super) fn context(mut self, step: impl Into<String>) -> Self {
        self.error = self.error.context(step.into());
        self
    }

    pub(super) fn exit(&self) -> Exit {
        self.exit
    }

    /// The text for people: the error, its causes, the hint.
    pub(super) fn text(&self) -> String {
        let word = match self.exit {
            Exit::Warning => "warning",
            _ => "error",
        };
        let mut text = format!("{word}: {}", self.said().join("\n  caused by: "));
        if let Some(hint) = &self.hint {
            text.push_str("\nhint: ");
            text.push_str(hint);
        }
        text
    }

    /// The same for machines: `error` with its causes, and `hint`.
    pub(super) fn json(&self) -> serde_json::Map<String, Value> {
        let (error, hint) = (self.said().join(": "), self.hint.clone());
        [("error", error.into()), ("hint", hint.into())]
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect()
    }

    /// The error, then its causes.
    fn said(&self) -> Vec<String> {
        let mut said: Vec<String> = Vec::new();
        let mut last = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            // Wrappers often repeat what they wrap.
            if said.is_empty() || !last.contains(&cause) {
                said.push(cause.clone());
            }
            last = cause;
        }
        said
    }

    /// Prints the text and gives the exit code.
    pub(super) fn report(&self, printer: Printer) -> ExitCode {
        if self.exit() != Exit::Quiet {
            printer.note(self.text());
        }
        ExitCode::from(self.exit() as u8)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Exit::Usage, error).hint(
            "docs/oncehook.toml lists every option; `oncehook check` explains a configuration",
        )
    }
}

fn is_running(key: &str) -> String {
    format!("is the database of {key} running? `oncehook dev` stops its own when it ends")
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let (exit, hint) = match &error {
            StoreError::NotFound(_)
            | StoreError::Refused(_)
            | StoreError::CallUnderWay { .. }
            | StoreError::CountUnderWay
            | StoreError::Migration(_) => {
                (Exit::No, None)
            }
            StoreError::Url(key, _) => (
                Exit::Usage,
                Some(format!(
                    "write {key} as postgresql://user:password@host:5432/database?sslmode=verify-full"
                )),
            ),
            StoreError::Tls(_) => (
                Exit::Unreachable,
                Some(
                    "`sslrootcert` of the URL names the file with the certificates that its server's must lead to"
                        .to_owned(),
                ),
            ),
            StoreError::Unreachable(key, _) => (Exit::Unreachable, Some(is_running(key))),
            StoreError::Unavailable(_) => (Exit::Unreachable, Some(is_running("database.url"))),
            StoreError::Statement(_) => match error.sqlstate().map(SqlState::code) {
                // The sentence itself says what to do.
                Some("42P05" | "26000") => (Exit::No, None),
                Some(code) if code.starts_with("42") || code.starts_with("3F") => (
                    Exit::No,
                    Some(
                        "is the schema up to date? `oncehook migrate --dry-run` lists what is missing"
                            .to_owned(),
                    ),
                ),
                _ => (Exit::Unreachable, None),
            },
            _ => (Exit::Unreachable, None),
        };
        let failure = Self::new(exit, error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => error.into(),
            other => Self::new(Exit::Usage, other),
        }
    }
}

/// `anyhow` context for results on their way to a [`Failure`] that says no.
pub(super) trait Step<T> {
    fn step(self, text: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E> Step<T> for Result<T, E>
where
    Self: anyhow::Context<T, E>,
{
    fn step(self, text: impl Into<String>) -> Result<T, Failure> {
        self.with_context(|| text.into())
            .map_err(|error| Failure::new(Exit::No, error))
    }
}
