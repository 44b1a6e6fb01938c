//! Where a cluster lives on disk, and who owns that folder.
//!
//! ```text
//! <dir>/lock        held by the owner while it lives
//! <dir>/data/       PostgreSQL's data folder
//! <dir>/socket/     the Unix socket, closed to others
//! <dir>/server.log
//! ```

use std::env;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;
use sha2::{Digest, Sha256};

use super::account::Account;
use super::error::{Action, EmbeddedError};

/// The longest path a Unix socket can have everywhere (macOS: 104 bytes with the closing NUL).
const SOCKET_PATH_BYTES_MAX: usize = 103;

/// PostgreSQL's file name for the socket of port 5432.
const SOCKET_NAME: &str = ".s.PGSQL.5432";

/// The cluster does not live where it was wanted; `Display` is the sentence to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Where it was wanted.
    pub wanted: PathBuf,
    /// Where it is.
    pub used: PathBuf,
    /// Why.
    pub reason: MovedReason,
}

/// Why a cluster lives in a temporary folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MovedReason {
    /// The user PostgreSQL runs as cannot enter it or write there.
    Unreachable,
    /// A Unix socket there would have too long a path.
    PathTooLong,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            MovedReason::Unreachable => "the user it runs as cannot use",
            MovedReason::PathTooLong => "a socket path would be too long in",
        };
        write!(
            f,
            "the private PostgreSQL lives in {}, because {reason} {}",
            self.used.display(),
            self.wanted.display()
        )
    }
}

/// A cluster's folder.
#[derive(Debug, Clone)]
pub(super) struct Place {
    dir: PathBuf,
    moved: Option<Moved>,
}

impl Place {
    /// The wanted folder, or a short temporary one that stays the same for it.
    pub(super) fn choose(wanted: &Path, account: Account) -> Result<Self, EmbeddedError> {
        let reason = match problem(wanted) {
            Some(reason) => reason,
            None if prepare(wanted, account) => {
                return Ok(Self {
                    dir: wanted.to_owned(),
                    moved: None,
                });
            }
            None => MovedReason::Unreachable,
        };
        let mut tried = vec![wanted.display().to_string()];
        for used in temporary(wanted) {
            if problem(&used).is_none() && is_ours(&used, account)? && prepare(&used, account) {
                return Ok(Self {
                    dir: used.clone(),
                    moved: Some(Moved {
                        wanted: wanted.to_owned(),
                        used,
                        reason,
                    }),
                });
            }
            tried.push(used.display().to_string());
        }
        Err(EmbeddedError::NoPlace(format!(
            "tried {}",
            tried.join(", ")
        )))
    }

    /// Every folder a cluster wanted at `wanted` may live in.
    pub(super) fn all(wanted: &Path) -> Vec<Self> {
        std::iter::once(wanted.to_owned())
            .chain(temporary(wanted))
            .map(|dir| Self { dir, moved: None })
            .collect()
    }

    /// Whether a cluster may live there: a real folder, not a link laid by somebody else.
    pub(super) fn is_safe_to_wipe(&self) -> bool {
        self.dir.symlink_metadata().is_ok_and(|existing| {
            existing.is_dir()
                && Account::detect(&self.data())
                    .and_then(|account| is_ours(&self.dir, account))
                    .unwrap_or(false)
        })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn moved(&self) -> Option<&Moved> {
        self.moved.as_ref()
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Where the data folder is made, so that half of one is never taken for a whole.
    pub(super) fn data_new(&self) -> PathBuf {
        self.dir.join("data.new")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// Major version that made the data, if there is any.
    pub(super) fn data_major(&self) -> Option<u32> {
        let text = fs::read_to_string(self.data().join("PG_VERSION")).ok()?;
        text.trim().parse().ok()
    }

    /// Makes the folder of the socket, which only PostgreSQL's user may enter.
    pub(super) fn prepare_socket(&self, account: Account) -> Result<(), EmbeddedError> {
        let dir = self.socket();
        make_private(&dir)
            .and_then(|()| account.own(&dir))
            .action(|| format!("make {}", dir.display()))
    }

    /// Takes the folder for this process. The lock goes with the process, however it ends, and
    /// PostgreSQL does not inherit it.
    pub(super) fn lock(&self) -> Result<File, EmbeddedError> {
        let path = self.dir.join("lock");
        let action = || format!("lock {}", path.display());
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .action(action)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // Only for the message; who does not say its name is still the owner.
                drop(file.read_to_string(&mut owner));
                return Err(EmbeddedError::InUse {
                    dir: self.dir.clone(),
                    pid: owner.trim().parse().ok(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(error).action(action),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .action(action)?;
        Ok(file)
    }

    /// Removes data, socket and log; the lock file stays, since the caller holds it.
    pub(super) fn clear(&self) -> Result<(), EmbeddedError> {
        for dir in [self.data(), self.data_new(), self.socket()] {
            absent(fs::remove_dir_all(&dir)).action(|| format!("remove {}", dir.display()))?;
        }
        let log = self.log();
        absent(fs::remove_file(&log)).action(|| format!("remove {}", log.display()))
    }
}

/// "Not there" is what removing wants.
pub(super) fn absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn problem(dir: &Path) -> Option<MovedReason> {
    let socket = dir.join("socket").join(SOCKET_NAME);
    (socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX).then_some(MovedReason::PathTooLong)
}

/// Makes the folder, gives it to the user and tries it. A folder made in vain is removed.
fn prepare(dir: &Path, account: Account) -> bool {
    let existed = dir.exists();
    let made = dir
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| make_private(dir))
        .and_then(|()| account.own(dir));
    let usable = made.is_ok() && account.can_use(dir);
    if !usable && !existed {
        // Best effort: an empty folder left behind does no harm.
        drop(fs::remove_dir(dir));
    }
    usable
}

fn make_private(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        other => other,
    }
}

/// Short folders that belong to `wanted` alone.
fn temporary(wanted: &Path) -> Vec<PathBuf> {
    let digest = Sha256::digest(wanted.as_os_str().as_bytes());
    let name = format!(
        "oncehook-{}",
        hex::encode(digest).get(..12).unwrap_or("private")
    );
    let mut bases = vec![env::temp_dir()];
    if bases.iter().all(|base| base != Path::new("/tmp")) {
        bases.push(PathBuf::from("/tmp"));
    }
    bases.into_iter().map(|base| base.join(&name)).collect()
}

/// A folder in a place everybody may write to could have been laid there by somebody else.
fn is_ours(dir: &Path, account: Account) -> Result<bool, EmbeddedError> {
    let Ok(existing) = dir.symlink_metadata() else {
        return Ok(true);
    };
    let owner = existing.uid();
    if existing.is_dir() && (owner == account.uid() || owner == Uid::effective().as_raw()) {
        return Ok(true);
    }
    Err(EmbeddedError::NoPlace(format!(
        "{} belongs to somebody else; remove it",
        dir.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    fn account() -> Account {
        Account::detect(Path::new("/nonexistent")).unwrap()
    }

    #[test]
    fn a_long_path_moves_to_a_short_one_that_stays_the_same() {
        let base = tempfile::tempdir().unwrap();
        let wanted = base.path().join("x".repeat(100));
        let first = Place::choose(&wanted, account()).unwrap();
        let again = Place::choose(&wanted, account()).unwrap();
        assert_eq!(first.dir(), again.dir());
        let moved = first.moved().unwrap();
        assert_eq!(moved.reason, MovedReason::PathTooLong);
        assert!(moved.to_string().contains("too long"), "{moved}");
        assert!(!wanted.exists());
        fs::remove_dir_all(first.dir()).unwrap();
    }

    #[test]
    fn a_link_laid_in_the_temporary_folder_is_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let wanted = base.path().join("y".repeat(100));
        let trap = temporary(&wanted).remove(0);
        std::os::unix::fs::symlink("/usr", &trap).unwrap();
        let error = Place::choose(&wanted, account()).unwrap_err();
        fs::remove_file(&trap).unwrap();
        assert!(error.to_string().contains("somebody else"), "{error}");
    }

    #[test]
    fn the_second_owner_is_told_who_the_first_is() {
        let base = tempfile::tempdir().unwrap();
        let place = Place {
            dir: base.path().to_owned(),
            moved: None,
        };
        let held = place.lock().unwrap();
        let error = place.lock().unwrap_err();
        let me = format!("process {}", std::process::id());
        assert!(error.to_string().contains(&me), "{error}");
        drop(held);
        // A process that a neighbouring test is just beginning has a copy of the open file until
        // its `exec`.
        let since = Instant::now();
        while let Err(error) = place.lock() {
            assert!(since.elapsed() < Duration::from_secs(30), "{error}");
            thread::yield_now();
        }
    }
}
