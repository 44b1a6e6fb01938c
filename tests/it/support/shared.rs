//! One PostgreSQL cluster for all test threads and processes of this checkout.
//!
//! The first comer starts it under a file lock, the others join. A small shell process
//! (`supervise.sh`) ends it ten seconds after the last client is gone, and removes its folder.
//! What even that leaves behind is swept by the next start.
//!
//! ```text
//! <area>/start.lock     one at a time joins or starts
//! <area>/current        names the run that may be joined
//! <area>/r<id>/         one run: pg/ (the cluster), clients/<pid>, alive (locked), seed/, standby/
//! <area>/o<id>/         clusters of single tests
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::unistd::Uid;
use oncehook::embedded::{Cluster, EmbeddedError, Options, wipe};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::database::connect;

/// Seconds without a client after which the cluster ends.
const GRACE_S: u32 = 10;

/// Connections of a cluster that one test owns.
pub(crate) const OWN_CONNECTIONS: u16 = 100;

/// The shared cluster, joined for the rest of this process.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    area: PathBuf,
    run: PathBuf,
    url: String,
}

/// The shared cluster of this checkout.
pub(crate) async fn shared() -> &'static Shared {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED
        .get_or_init(|| Shared::join(area(), std::process::id(), GRACE_S))
        .await
}

impl Shared {
    /// Joins or starts the cluster of an area, on behalf of a process.
    pub(crate) async fn join(area: PathBuf, client: u32, grace_s: u32) -> Self {
        make_area(&area);
        let lock = lock(&area.join("start.lock")).await;
        let joined = match Self::current(&area, client).await {
            Some(shared) => shared,
            None => tokio::task::spawn_blocking(move || Self::start(area, client, grace_s))
                .await
                .unwrap(),
        };
        drop(lock);
        joined
    }

    /// The run that can be joined, if it answers.
    async fn current(area: &Path, client: u32) -> Option<Self> {
        let name = || fs::read_to_string(area.join("current")).ok();
        let run = PathBuf::from(name()?);
        let url = fs::read_to_string(run.join("url")).ok()?;
        // Registered first, then read again: see `supervise.sh`.
        let mark = run.join("clients").join(client.to_string());
        fs::write(&mark, "").ok()?;
        if name().map(PathBuf::from).as_ref() == Some(&run) {
            let answer = tokio::time::timeout(Duration::from_secs(5), connect(&url)).await;
            if matches!(answer, Ok(Ok(_))) {
                let area = area.to_owned();
                return Some(Self { area, run, url });
            }
        }
        drop(fs::remove_file(mark));
        None
    }

    #[expect(
        clippy::zombie_processes,
        reason = "the supervisor outlives this process on purpose"
    )]
    fn start(area: PathBuf, client: u32, grace_s: u32) -> Self {
        sweep(&area);
        let run = area.join(format!("r{}", unique()));
        fs::create_dir_all(run.join("clients")).unwrap();
        fs::write(run.join("clients").join(client.to_string()), "").unwrap();
        let mut cluster = Cluster::start(Options {
            durable: false,
            connections_max: 400,
            ephemeral: true,
            settings: vec![("max_wal_size".to_owned(), "256MB".to_owned())],
            ..Options::new(run.join("pg"))
        })
        .unwrap_or_else(|error| panic!("the shared cluster does not start: {error}"));
        let url = cluster.url("postgres");
        fs::write(run.join("url"), &url).unwrap();

        let alive = File::create(run.join("alive")).unwrap();
        alive.lock().unwrap();
        let data = cluster.dir().join("data");
        // Its own process group and no inherited output: neither Ctrl-C ends it, nor does
        // cargo wait for it.
        Command::new("/bin/sh")
            .args(["-c", include_str!("supervise.sh"), "oncehook-supervise"])
            .args([&area.join("current"), &run, &data])
            .arg(cluster.pid().unwrap().to_string())
            .arg(grace_s.to_string())
            .current_dir("/")
            .stdin(Stdio::from(alive))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        cluster.release().unwrap();
        let name = run.to_str().unwrap();
        fs::write(area.join("current.new"), name).unwrap();
        fs::rename(area.join("current.new"), area.join("current")).unwrap();
        Self { area, run, url }
    }

    /// The URL of its maintenance database.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The folder of this run; it disappears with it.
    pub(crate) fn run(&self) -> &Path {
        &self.run
    }

    /// A new folder for a cluster of one test.
    pub(crate) fn own_folder(&self) -> PathBuf {
        self.area.join(format!("o{}", unique()))
    }

    /// A data folder fresh from `initdb`, made once per run, for clusters of single tests.
    pub(crate) async fn seed(&self) -> PathBuf {
        let seed = self.run.join("seed");
        let lock = lock(&self.run.join("seed.lock")).await;
        if !seed.exists() {
            let (made, target) = (self.own_folder(), seed.clone());
            tokio::task::spawn_blocking(move || {
                let mut cluster = Cluster::start(Options {
                    durable: false,
                    // A standby needs as many as the server that wrote its data.
                    connections_max: OWN_CONNECTIONS,
                    ephemeral: true,
                    ..Options::new(&made)
                })
                .unwrap();
                cluster.stop().unwrap();
                fs::rename(cluster.dir().join("data"), target).unwrap();
            })
            .await
            .unwrap();
        }
        drop(lock);
        seed
    }

    /// The same data, for a standby: it begins with what the seed has and gets the rest of the log
    /// from a primary that was made of the seed too.
    pub(crate) async fn standby_seed(&self) -> PathBuf {
        let seed = self.seed().await;
        let standby = self.run.join("standby");
        let lock = lock(&self.run.join("seed.lock")).await;
        if !standby.exists() {
            let made = self.run.join("standby.new");
            let copied = Command::new("cp")
                .arg("-a")
                .args([&seed, &made])
                .status()
                .unwrap();
            assert!(copied.success(), "cp: {copied}");
            fs::write(made.join("standby.signal"), "").unwrap();
            fs::rename(made, &standby).unwrap();
        }
        drop(lock);
        standby
    }
}

/// A short folder that belongs to this checkout and user.
fn area() -> PathBuf {
    let digest = Sha256::digest(format!(
        "{}\n{}",
        env!("CARGO_MANIFEST_DIR"),
        Uid::effective()
    ));
    let name = hex::encode(digest);
    base().join(format!("oncehook-it-{}", &name[..8]))
}

/// Memory where there is plenty of it: a database is three hundred files, and making them took
/// 300 ms on an ext4 disk, 20 ms here. The size is asked, not what is free, so that all
/// processes decide alike.
fn base() -> PathBuf {
    const BYTES_MIN: u64 = 4 << 30;
    let memory = Path::new("/dev/shm");
    match nix::sys::statvfs::statvfs(memory) {
        Ok(fs) if fs.blocks() * fs.fragment_size() >= BYTES_MIN => memory.to_owned(),
        _ => std::env::temp_dir(),
    }
}

/// The user PostgreSQL runs as passes through, nobody else may have laid it there.
fn make_area(area: &Path) {
    if let Err(error) = DirBuilder::new().mode(0o711).create(area) {
        let existing = area
            .symlink_metadata()
            .unwrap_or_else(|_| panic!("{}: {error}", area.display()));
        let ours = existing.is_dir() && existing.uid() == Uid::effective().as_raw();
        assert!(ours, "{} belongs to somebody else", area.display());
    }
}

/// Waits for a lock file without blocking the runtime.
async fn lock(path: &Path) -> File {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .unwrap();
    tokio::task::spawn_blocking(move || {
        file.lock().unwrap();
        file
    })
    .await
    .unwrap()
}

/// Removes what nobody watches over any more. The caller holds `start.lock`.
fn sweep(area: &Path) {
    for entry in area.read_dir().unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let pg = match name.to_str().unwrap_or("").as_bytes().first() {
            Some(b'r') if !is_locked(&path.join("alive")) => path.join("pg"),
            Some(b'o') => path.clone(),
            _ => continue,
        };
        match wipe(&pg) {
            Err(EmbeddedError::InUse { .. }) => {}
            // The rest is the business of whoever removes it at this moment.
            _ => drop(fs::remove_dir_all(&path)),
        }
    }
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock().is_err())
}

/// A short name that no other process or thread of this machine uses now.
fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{next:x}", std::process::id())
}
