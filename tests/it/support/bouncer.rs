//! A PgBouncer in front of a test's database, configured as `docs/poolers.md` says.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::leash::Leashed;
use super::node::free_address;
use super::{TestDb, tool, until};

/// A running one; killed when dropped or when the test process dies.
#[derive(Debug)]
pub(crate) struct PgBouncer {
    program: PathBuf,
    address: SocketAddr,
    socket_dir: PathBuf,
    folder: TempDir,
    /// `None` while it is dead.
    process: Option<Leashed>,
}

impl PgBouncer {
    /// In front of a test's cluster, with so many server sessions per database. `None` where there
    /// is none: see [`tool::missing`]. `PGBOUNCER` names another program than the installed one.
    pub(crate) async fn start(db: &TestDb, pool_mode: &str, sessions: usize) -> Option<Self> {
        let Some(program) = program() else {
            tool::missing("pgbouncer", "pgbouncer");
            return None;
        };
        let config: tokio_postgres::Config = db.url.parse().unwrap();
        let [tokio_postgres::config::Host::Unix(socket_dir)] = config.get_hosts() else {
            panic!("not a Unix socket: {}", db.url);
        };
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        write_config(
            &program,
            folder.path(),
            address,
            socket_dir,
            pool_mode,
            sessions,
        );
        let process = spawn(&program, folder.path());
        let started = Self {
            program,
            address,
            socket_dir: socket_dir.clone(),
            folder,
            process: Some(process),
        };
        started.until_listening().await;
        Some(started)
    }

    /// The URL of a database through it.
    pub(crate) fn url(&self, database: &str) -> String {
        format!(
            "postgresql://postgres@{}/{database}?sslmode=disable",
            self.address
        )
    }

    /// Ends it: connections on both sides are lost.
    pub(crate) fn kill9(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same address; kills it first if it runs.
    pub(crate) async fn restart(&mut self) {
        self.kill9();
        self.process = Some(spawn(&self.program, self.folder.path()));
        self.until_listening().await;
    }

    /// The same in another mode.
    pub(crate) async fn restart_in(&mut self, pool_mode: &str, sessions: usize) {
        write_config(
            &self.program,
            self.folder.path(),
            self.address,
            &self.socket_dir,
            pool_mode,
            sessions,
        );
        self.restart().await;
    }

    async fn until_listening(&self) {
        until("PgBouncer listens", async || {
            TcpStream::connect(self.address).is_ok()
        })
        .await;
    }
}

fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("PGBOUNCER") {
        return Some(named.into());
    }
    [
        "/usr/sbin/pgbouncer",
        "/usr/bin/pgbouncer",
        "/usr/local/bin/pgbouncer",
    ]
    .iter()
    .map(PathBuf::from)
    .find(|path| path.exists())
}

/// The lines of the documentation, with our own addresses, without passwords.
fn write_config(
    program: &Path,
    folder: &Path,
    address: SocketAddr,
    socket_dir: &Path,
    pool_mode: &str,
    sessions: usize,
) {
    let documented = include_str!("../../../docs/poolers.md");
    let (_, after) = documented.split_once("```ini\n").unwrap();
    let (documented, _) = after.split_once("```").unwrap();
    let mut lines = String::new();
    for line in documented.lines() {
        let key = line.split(" = ").next().unwrap();
        let line = match key {
            "app" => format!("* = host={} port=5432 user=postgres", socket_dir.display()),
            "listen_addr" => format!("listen_addr = {}", address.ip()),
            "listen_port" => format!("listen_port = {}", address.port()),
            "auth_type" => "auth_type = any".to_owned(),
            "auth_file" => continue,
            "pool_mode" => format!("pool_mode = {pool_mode}"),
            "default_pool_size" => format!("default_pool_size = {sessions}"),
            _ => line.to_owned(),
        };
        lines.push_str(&line);
        lines.push('\n');
    }
    lines.push_str("unix_socket_dir =\n");
    // From 1.21 on it can track named statements; whether it does must not matter.
    if tracks_statements(program) {
        lines.push_str("max_prepared_statements = 0\n");
    }
    std::fs::write(config(folder), lines).unwrap();
}

fn tracks_statements(program: &Path) -> bool {
    let output = Command::new(program).arg("-V").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let minor = said.split(['.', ' ']).nth(2).unwrap();
    minor.parse::<u32>().unwrap() >= 21
}

fn config(folder: &Path) -> PathBuf {
    folder.join("pgbouncer.ini")
}

fn spawn(program: &Path, folder: &Path) -> Leashed {
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let config = config(folder);
    let mut args = vec![config.as_os_str()];
    if nix::unistd::geteuid().is_root() {
        args.splice(0..0, ["-u", "postgres"].map(OsStr::new));
    }
    Leashed::start(program.as_os_str(), args, log).unwrap()
}
