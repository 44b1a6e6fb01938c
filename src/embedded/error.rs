//! What can keep a private cluster from running.

use std::io;
use std::path::PathBuf;

/// Why the private cluster could not be found, started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// No usable PostgreSQL on this machine, and none could be fetched.
    #[error(
        "no PostgreSQL 14 or newer was found on this machine{fetch}\n\
         install it with:  {install}\n\
         or set ONCEHOOK_PG_BIN to the folder that holds `postgres` and `initdb`, \
         or DATABASE_URL to a database that already runs"
    )]
    NoBinaries {
        /// How fetching it went; empty when that was not tried.
        fetch: String,
        /// The command that installs it here.
        install: &'static str,
    },
    /// The folder named by `ONCEHOOK_PG_BIN` cannot be used.
    #[error("ONCEHOOK_PG_BIN={}: {problem}", dir.display())]
    Chosen {
        /// The folder.
        dir: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The data folder was made by another major version than any found.
    #[error(
        "the data in {} was made by PostgreSQL {made_by}, which is no longer found here; \
         install that version again, or begin anew with --fresh",
        dir.display()
    )]
    DataVersion {
        /// The cluster's folder.
        dir: PathBuf,
        /// Major version that made the data.
        made_by: u32,
    },
    /// PostgreSQL refuses to run as root and there is nobody to run it as.
    #[error("PostgreSQL does not run as root, and neither user `postgres` nor `nobody` exists")]
    NoAccount,
    /// Neither the wanted folder nor a temporary one can hold the cluster.
    #[error("no folder can hold the private PostgreSQL: {0}")]
    NoPlace(String),
    /// Another process owns this folder.
    #[error("{} is in use by another oncehook{}; stop that one first", dir.display(), by(.pid.as_ref()))]
    InUse {
        /// The cluster's folder.
        dir: PathBuf,
        /// The owner's process id, if it could be read.
        pid: Option<u32>,
    },
    /// A program of PostgreSQL failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What it said.
        output: String,
    },
    /// The server ended or did not get ready in time.
    #[error("PostgreSQL {problem}; its log is {}\n{tail}", log.display())]
    Server {
        /// What happened.
        problem: String,
        /// The server's log file.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// A file or process operation failed.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The running server refused a connection or statement.
    #[error("the private PostgreSQL refused")]
    Database(#[from] tokio_postgres::Error),
}

fn by(pid: Option<&u32>) -> String {
    pid.map(|pid| format!(" (process {pid})"))
        .unwrap_or_default()
}

/// Names what was tried when an I/O operation fails.
pub(super) trait Action<T> {
    fn action(self, action: impl FnOnce() -> String) -> Result<T, EmbeddedError>;
}

impl<T> Action<T> for io::Result<T> {
    fn action(self, action: impl FnOnce() -> String) -> Result<T, EmbeddedError> {
        self.map_err(|source| EmbeddedError::Io {
            action: action(),
            source,
        })
    }
}
