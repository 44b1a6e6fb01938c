//! The private cluster as its owner sees it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

use super::account::Account;
use super::binaries::{Binaries, Search};
use super::error::{Action, EmbeddedError};
use super::place::{Moved, Place, absent};
use super::postmaster::{end_leftover, remove_segment};
use super::server::{Launch, Server};

/// How a cluster is made and run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder it shall live in; made if missing.
    pub dir: PathBuf,
    /// Whether committed data survives a crash of the machine. Tests that crash only processes
    /// do without and save the time.
    pub durable: bool,
    /// Connections the server accepts.
    pub connections_max: u16,
    /// Remove the folder when the cluster ends, also when its owner was killed.
    pub ephemeral: bool,
    /// A stopped cluster's data folder to begin with, in place of `initdb`.
    pub copy_from: Option<PathBuf>,
    /// Further PostgreSQL settings; they win over ours.
    pub settings: Vec<(String, String)>,
    /// Where PostgreSQL's programs are looked for.
    pub search: Search,
}

impl Options {
    /// A durable cluster that stays when its owner ends.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            durable: true,
            connections_max: 200,
            ephemeral: false,
            copy_from: None,
            settings: Vec::new(),
            search: Search::new(),
        }
    }

    fn server_settings(&self, socket: &Path) -> Vec<(String, String)> {
        let durable = if self.durable { "on" } else { "off" };
        let fixed = [
            ("listen_addresses", String::new()),
            ("unix_socket_directories", quote_list(socket)),
            ("max_connections", self.connections_max.to_string()),
            ("shared_buffers", "64MB".to_owned()),
            ("fsync", durable.to_owned()),
            ("full_page_writes", durable.to_owned()),
            // Files of the data folder, so that a killed server leaves nothing outside of it.
            ("dynamic_shared_memory_type", "mmap".to_owned()),
            ("jit", "off".to_owned()),
            ("logging_collector", "off".to_owned()),
            ("log_destination", "stderr".to_owned()),
        ];
        fixed
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .chain(self.settings.iter().cloned())
            .collect()
    }
}

/// A running private PostgreSQL. Dropping it stops it.
///
/// When the owner is killed, a small guard process stops PostgreSQL within seconds; whatever
/// that misses is stopped by the next start in the same folder.
#[derive(Debug)]
pub struct Cluster {
    options: Options,
    account: Account,
    binaries: Binaries,
    place: Place,
    server: Option<Server>,
    /// Held for as long as we may touch the folder.
    _lock: File,
}

impl Cluster {
    /// Finds PostgreSQL, makes the data folder if there is none, and starts the server; returns
    /// once it accepts connections.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NoBinaries`] names the install command, [`EmbeddedError::InUse`] the
    /// other owner, [`EmbeddedError::Server`] the server's log. Existing data stays untouched.
    pub fn start(mut options: Options) -> Result<Self, EmbeddedError> {
        options.dir = std::path::absolute(&options.dir)
            .action(|| format!("resolve {}", options.dir.display()))?;
        let account = Account::detect(&options.dir.join("data"))?;
        let place = Place::choose(&options.dir, account)?;
        let lock = place.lock()?;
        let made_by = place.data_major();
        let binaries = options.search.find_or_fetch(account, made_by);
        let binaries = match (binaries, made_by) {
            (Err(EmbeddedError::NoBinaries { .. }), Some(made_by))
                if options.search.find(account, None)?.is_some() =>
            {
                return Err(EmbeddedError::DataVersion {
                    dir: place.dir().to_owned(),
                    made_by,
                });
            }
            (other, _) => other?,
        };
        end_leftover(&place.data());
        if made_by.is_none() {
            initialise(&options, account, &binaries, &place)?;
        }
        let mut cluster = Self {
            options,
            account,
            binaries,
            place,
            server: None,
            _lock: lock,
        };
        cluster.launch()?;
        Ok(cluster)
    }

    fn launch(&mut self) -> Result<(), EmbeddedError> {
        self.place.prepare_socket(self.account)?;
        self.server = Some(Server::start(&Launch {
            account: self.account,
            binaries: &self.binaries,
            place: &self.place,
            settings: self.options.server_settings(&self.place.socket()),
            remove: self.options.ephemeral,
        })?);
        Ok(())
    }

    /// The URL of a database of this cluster, for its superuser.
    pub fn url(&self, database: &str) -> String {
        url(&self.place.socket(), database)
    }

    /// The folder it really lives in.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// The folder of its Unix socket; the port is 5432.
    pub fn socket_dir(&self) -> PathBuf {
        self.place.socket()
    }

    /// The server's log file.
    pub fn log(&self) -> PathBuf {
        self.place.log()
    }

    /// Says so when it lives elsewhere than wanted; to be printed.
    pub fn moved(&self) -> Option<&Moved> {
        self.place.moved()
    }

    /// The programs it runs on.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Process id of the server; `None` when it does not run.
    pub fn pid(&mut self) -> Option<u32> {
        let server = self.server.as_mut()?;
        server.is_running().then(|| server.pid())
    }

    /// Stops the server: connections end, open transactions roll back, data is flushed.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::Server`] when it had to be killed; committed data is safe all the same.
    pub fn stop(&mut self) -> Result<(), EmbeddedError> {
        match self.server.take() {
            Some(server) => server.stop(&self.place),
            None => Ok(()),
        }
    }

    /// Kills every process of the server with SIGKILL, as a loss of power would.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
    }

    /// Stops the server if it runs and starts it again on the same data and the same socket.
    ///
    /// # Errors
    ///
    /// As for [`Cluster::start`].
    pub fn restart(&mut self) -> Result<(), EmbeddedError> {
        self.stop()?;
        // Processes of a postmaster that was killed from outside may still be there.
        end_leftover(&self.place.data());
        self.launch()
    }

    /// Gives the running server up: it lives on without an owner or guard. Returns its process
    /// id, or `None` when it does not run.
    pub fn release(mut self) -> Option<u32> {
        self.options.ephemeral = false;
        self.server.take().map(Server::release)
    }

    /// Makes a database; `false` when it was there already.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::Database`] when the server refuses.
    pub async fn create_database(&self, name: &str) -> Result<bool, EmbeddedError> {
        let (client, connection) = tokio_postgres::connect(&self.url("postgres"), NoTls).await?;
        let connection = tokio::spawn(connection);
        let quoted = name.replace('"', "\"\"");
        let made = client
            .batch_execute(&format!("CREATE DATABASE \"{quoted}\""))
            .await;
        drop(client);
        connection.abort();
        match made {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(&SqlState::DUPLICATE_DATABASE) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!("{error}");
        }
        if self.options.ephemeral {
            remove_segment(&self.place.data());
            // What cannot be removed now lies in a temporary folder.
            drop(fs::remove_dir_all(self.place.dir()));
        }
    }
}

/// Removes the data of the cluster that lives at `dir` (or was moved from there), so that the
/// next start begins anew. A server left over on it is stopped first.
///
/// # Errors
///
/// [`EmbeddedError::InUse`] while another process owns it; then nothing is removed.
pub fn wipe(dir: impl AsRef<Path>) -> Result<(), EmbeddedError> {
    let dir = dir.as_ref();
    let dir = std::path::absolute(dir).action(|| format!("resolve {}", dir.display()))?;
    for place in Place::all(&dir) {
        if place.is_safe_to_wipe() {
            let _lock = place.lock()?;
            end_leftover(&place.data());
            remove_segment(&place.data());
            place.clear()?;
        }
    }
    Ok(())
}

/// Makes the data folder beside its place and renames it when it is whole.
fn initialise(
    options: &Options,
    account: Account,
    binaries: &Binaries,
    place: &Place,
) -> Result<(), EmbeddedError> {
    let fresh = place.data_new();
    absent(fs::remove_dir_all(&fresh)).action(|| format!("remove {}", fresh.display()))?;
    let mut command;
    let program = if let Some(template) = &options.copy_from {
        command = account.command("cp");
        command.arg("-Rp").arg(template).arg(&fresh);
        "cp"
    } else {
        command = account.command(binaries.program("initdb"));
        command.arg("-D").arg(&fresh);
        command.args(["-U", "postgres", "-E", "UTF8", "--locale=C"]);
        command.args(["--auth-local=trust", "--auth-host=reject"]);
        if !options.durable {
            command.arg("--no-sync");
        }
        "initdb"
    };
    let output = command
        .current_dir(place.dir())
        .output()
        .action(|| format!("run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(EmbeddedError::Program {
            program,
            output: said,
        });
    }
    let data = place.data();
    absent(fs::remove_dir_all(&data)).action(|| format!("remove {}", data.display()))?;
    fs::rename(&fresh, &data).action(|| format!("move {} into place", fresh.display()))
}

/// A value of PostgreSQL's comma-separated lists.
fn quote_list(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('"', "\"\""))
}

/// `postgresql://postgres@/name?host=/socket/folder`, everything else percent-encoded.
fn url(socket: &Path, database: &str) -> String {
    format!(
        "postgresql://postgres@/{}?host={}",
        encode(database),
        encode(&socket.display().to_string())
    )
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push_str(&hex::encode_upper([byte]));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_back_as_meant() {
        let socket = Path::new("/tmp/a b&c%/socket");
        let url = url(socket, "one/two");
        let config: tokio_postgres::Config = url.parse().unwrap();
        assert_eq!(config.get_dbname(), Some("one/two"));
        assert_eq!(config.get_user(), Some("postgres"));
        assert_eq!(
            config.get_hosts(),
            [tokio_postgres::config::Host::Unix(socket.to_owned())]
        );
    }
}
