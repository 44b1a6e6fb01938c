//! Another clock for a child process: libfaketime, which steps when told; for PostgreSQL one that is
//! ahead and stays so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::tool;

/// What programs see in place of the time of day. Their monotonic clock stays the machine's, as
/// it does when an operator or NTP sets a clock.
#[derive(Debug)]
pub(crate) struct FakeClock {
    library: PathBuf,
    folder: TempDir,
}

impl FakeClock {
    /// A clock that goes right. `None` where libfaketime is not installed: see [`tool::missing`].
    pub(crate) fn new() -> Option<Self> {
        let Some(library) = library() else {
            tool::missing("faketime", "faketime");
            return None;
        };
        let clock = Self {
            library,
            folder: tempfile::tempdir().unwrap(),
        };
        clock.step("+0");
        Some(clock)
    }

    /// What a program's environment needs; it looks at the file at least this often.
    pub(crate) fn env(&self, look_every: Duration) -> Vec<(String, String)> {
        let mut env = vec![
            ("LD_PRELOAD".to_owned(), self.library.display().to_string()),
            (
                "FAKETIME_TIMESTAMP_FILE".to_owned(),
                self.file().display().to_string(),
            ),
            ("FAKETIME_DONT_FAKE_MONOTONIC".to_owned(), "1".to_owned()),
            ("NO_FAKE_STAT".to_owned(), "1".to_owned()),
        ];
        env.push(if look_every.is_zero() {
            ("FAKETIME_NO_CACHE".to_owned(), "1".to_owned())
        } else {
            (
                "FAKETIME_CACHE_DURATION".to_owned(),
                look_every.as_secs().max(1).to_string(),
            )
        });
        env
    }

    /// Puts it so far from the machine's clock: `+3600`, `-3600`, in seconds.
    pub(crate) fn step(&self, offset_s: &str) {
        let fresh = self.folder.path().join("new");
        fs::write(&fresh, format!("{offset_s}\n")).unwrap();
        fs::rename(fresh, self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}

/// The library for programs with threads.
fn library() -> Option<PathBuf> {
    ["x86_64-linux-gnu", "aarch64-linux-gnu"]
        .iter()
        .map(|machine| Path::new("/usr/lib").join(machine))
        .map(|folder| folder.join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.exists())
}

/// Builds a library that puts PostgreSQL's clock ahead by `ONCEHOOK_CLOCK_AHEAD` seconds; `None`, and a
/// line on standard error, where that cannot be done.
pub(crate) fn ahead(folder: &Path) -> Option<PathBuf> {
    let source = folder.join("shift.c");
    let library = folder.join("shift.so");
    fs::create_dir_all(folder).unwrap();
    fs::write(&source, include_str!("shift.c")).unwrap();
    let built = cfg!(target_os = "linux").then(|| {
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]);
        compiler.arg(&library).arg(&source).output()
    });
    match built {
        Some(Ok(output)) if output.status.success() => Some(library),
        other => {
            eprintln!("SKIPPED: no clock that is ahead (needs Linux and cc): {other:?}");
            None
        }
    }
}
