//! Where PostgreSQL's programs are on this machine.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::account::Account;
use super::error::EmbeddedError;
use super::fetch;

/// The oldest major version oncehook works with.
const MAJOR_MIN: u32 = 14;

/// A folder with `postgres` and `initdb` of one version, tried as the user who will run them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    dir: PathBuf,
    version: (u32, u32),
}

impl Binaries {
    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The path of one program.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs `postgres --version` as the given user, which also shows that it may.
    fn probe(dir: &Path, account: Account) -> Result<Self, String> {
        if !dir.join("initdb").is_file() {
            return Err("holds no initdb".to_owned());
        }
        let output = account
            .command(dir.join("postgres"))
            .arg("--version")
            .current_dir("/")
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("`postgres` cannot be run: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = parse_version(&text)
            .ok_or_else(|| format!("`postgres --version` said {:?}", text.trim()))?;
        if version.0 < MAJOR_MIN {
            return Err(format!(
                "PostgreSQL {} is too old, {MAJOR_MIN} is the oldest that works",
                version.0
            ));
        }
        Ok(Self {
            dir: dir.to_owned(),
            version,
        })
    }
}

/// Where to look for PostgreSQL. [`Search::new`] reads the environment; tests name their own.
#[derive(Debug, Clone)]
pub struct Search {
    /// The only folder to use, from `ONCEHOOK_PG_BIN`.
    pub chosen: Option<PathBuf>,
    /// Folders as in `PATH`.
    pub path: OsString,
    /// The usual places are looked up below this folder, `/` outside of tests.
    pub root: PathBuf,
    /// Where fetched versions are kept; `None` never fetches.
    pub cache: Option<PathBuf>,
}

impl Search {
    /// `ONCEHOOK_PG_BIN`, `PATH`, the usual places and the cache folder of this user.
    pub fn new() -> Self {
        Self {
            chosen: env::var_os("ONCEHOOK_PG_BIN")
                .filter(|value| !value.is_empty())
                .map(PathBuf::from),
            path: env::var_os("PATH").unwrap_or_default(),
            root: PathBuf::from("/"),
            cache: fetch::cache_folder(),
        }
    }

    /// The newest usable version, or the newest minor of `major` where existing data needs it.
    pub(super) fn find(
        &self,
        account: Account,
        major: Option<u32>,
    ) -> Result<Option<Binaries>, EmbeddedError> {
        if let Some(dir) = &self.chosen {
            return Binaries::probe(dir, account)
                .map(|found| Some(found).filter(|found| fits(found, major)))
                .map_err(|problem| EmbeddedError::Chosen {
                    dir: dir.clone(),
                    problem,
                });
        }
        let mut best: Option<Binaries> = None;
        for dir in self.candidates() {
            let Ok(found) = Binaries::probe(&dir, account) else {
                continue;
            };
            let newer = best
                .as_ref()
                .is_none_or(|best| best.version < found.version);
            if newer && fits(&found, major) {
                best = Some(found);
            }
        }
        Ok(best)
    }

    /// As [`Search::find`], then the network, then an error that names the install command.
    pub(super) fn find_or_fetch(
        &self,
        account: Account,
        major: Option<u32>,
    ) -> Result<Binaries, EmbeddedError> {
        if let Some(found) = self.find(account, major)? {
            return Ok(found);
        }
        let fetched = match &self.cache {
            Some(cache) if self.chosen.is_none() => fetch::fetch(cache, major)
                .and_then(|dir| Binaries::probe(&dir, account))
                .map_err(|problem| format!(", and it could not be fetched ({problem})")),
            _ => Err(String::new()),
        };
        fetched.map_err(|fetch| EmbeddedError::NoBinaries {
            fetch,
            install: install_command(),
        })
    }

    /// Folders that may hold the programs, those of `PATH` first.
    fn candidates(&self) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        for dir in env::split_paths(&self.path) {
            for program in ["postgres", "initdb"] {
                // A link leads to the folder where the other programs lie beside it.
                if let Ok(real) = dir.join(program).canonicalize() {
                    dirs.extend(real.parent().map(Path::to_owned));
                }
            }
        }
        // Debian and Ubuntu; RHEL and Fedora (PGDG); Homebrew on Apple silicon, Intel and Linux;
        // Postgres.app; Alpine; Fedora and Arch themselves.
        for (parent, prefix, rest) in [
            ("usr/lib/postgresql", "", "bin"),
            ("usr", "pgsql-", "bin"),
            ("opt/homebrew/opt", "postgresql", "bin"),
            ("usr/local/opt", "postgresql", "bin"),
            ("home/linuxbrew/.linuxbrew/opt", "postgresql", "bin"),
            ("Applications/Postgres.app/Contents/Versions", "", "bin"),
            ("usr/libexec", "postgresql", ""),
        ] {
            dirs.extend(children(&self.root.join(parent), prefix, rest));
        }
        dirs.push(self.root.join("usr/bin"));
        if let Some(cache) = &self.cache {
            dirs.extend(children(cache, "", "bin"));
        }
        let mut seen = BTreeSet::new();
        dirs.retain(|dir| {
            let real = dir.canonicalize().unwrap_or_else(|_| dir.clone());
            dir.join("postgres").is_file() && seen.insert(real)
        });
        dirs
    }
}

impl Default for Search {
    fn default() -> Self {
        Self::new()
    }
}

fn fits(found: &Binaries, major: Option<u32>) -> bool {
    major.is_none_or(|major| major == found.version.0)
}

/// `parent/<prefix>*/rest`.
fn children(parent: &Path, prefix: &str, rest: &str) -> Vec<PathBuf> {
    let Ok(entries) = parent.read_dir() else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path().join(rest))
        .collect()
}

/// `postgres (PostgreSQL) 15.13 (Debian ..)` or `postgres (PostgreSQL) 19devel` -> numbers.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let number = text.split_once("(PostgreSQL) ")?.1;
    let mut parts = number
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    let major = parts.next().filter(|major| *major > 0)?;
    Some((major, parts.next().unwrap_or(0)))
}

/// The command that installs PostgreSQL on this platform.
fn install_command() -> &'static str {
    if cfg!(target_os = "macos") {
        "brew install postgresql@17"
    } else if Path::new("/etc/debian_version").exists() {
        "apt-get install postgresql"
    } else if Path::new("/etc/redhat-release").exists() {
        "dnf install postgresql-server"
    } else {
        "apt-get install postgresql | dnf install postgresql-server | brew install postgresql@17"
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn account() -> Account {
        Account::detect(Path::new("/nonexistent")).unwrap()
    }

    /// Programs that only know their version. A child process writes them: a file that this
    /// process holds open for writing cannot be executed ("text file busy") while another test
    /// thread is between fork and exec.
    fn fake(dir: &Path, version: &str) {
        let script = r#"mkdir -p "$1" && cd "$1" || exit 1
            for p in postgres initdb; do
                printf '#!/bin/sh\necho "postgres (PostgreSQL) %s"\n' "$2" > "$p"; chmod 755 "$p"
            done"#;
        let status = Command::new("/bin/sh")
            .args(["-c", script, "sh"])
            .arg(dir)
            .arg(version)
            .status();
        assert!(status.unwrap().success());
    }

    fn machine() -> (tempfile::TempDir, Search) {
        let root = tempfile::tempdir().unwrap();
        Command::new("chmod")
            .arg("755")
            .arg(root.path())
            .status()
            .unwrap();
        let search = Search {
            chosen: None,
            path: root.path().join("path").into_os_string(),
            root: root.path().to_owned(),
            cache: None,
        };
        (root, search)
    }

    #[test]
    fn versions_are_read() {
        for (text, expected) in [
            (
                "postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)\n",
                Some((15, 13)),
            ),
            ("postgres (PostgreSQL) 17.0\n", Some((17, 0))),
            ("postgres (PostgreSQL) 19devel\n", Some((19, 0))),
            ("postgres (PostgreSQL) 18rc1\n", Some((18, 0))),
            ("postgres (SomethingElse) 17.0", None),
            ("", None),
        ] {
            // `18rc1` splits into 18 and, after the letters, 1: a release candidate has no minor,
            // but the order between versions is all that is asked for.
            assert_eq!(
                parse_version(text).map(|v| v.0),
                expected.map(|v: (u32, u32)| v.0),
                "{text}"
            );
        }
    }

    #[test]
    fn the_newest_wins_wherever_it_is() {
        let (root, search) = machine();
        fake(&root.path().join("usr/lib/postgresql/15/bin"), "15.4");
        fake(&root.path().join("usr/pgsql-16/bin"), "16.2");
        fake(&root.path().join("usr/lib/postgresql/9.6/bin"), "9.6.24");
        fake(
            &root.path().join("opt/homebrew/opt/postgresql@17/bin"),
            "17.1",
        );
        let found = search.find(account(), None).unwrap().unwrap();
        assert_eq!(found.version(), (17, 1));
        let found = search.find(account(), Some(15)).unwrap().unwrap();
        assert_eq!(
            found.dir(),
            root.path().join("usr/lib/postgresql/15/bin"),
            "existing data decides"
        );
        assert_eq!(search.find(account(), Some(18)).unwrap(), None);
    }

    #[test]
    fn a_link_on_path_leads_to_its_siblings() {
        let (root, search) = machine();
        let real = root.path().join("somewhere/bin");
        fake(&real, "16.1");
        std::fs::create_dir(root.path().join("path")).unwrap();
        std::os::unix::fs::symlink(real.join("postgres"), root.path().join("path/postgres"))
            .unwrap();
        let found = search.find(account(), None).unwrap().unwrap();
        assert_eq!(found.dir(), real.canonicalize().unwrap());
    }

    #[test]
    fn nothing_found_names_the_install_command() {
        let (root, search) = machine();
        fake(&root.path().join("usr/bin"), "13.9");
        let error = search.find_or_fetch(account(), None).unwrap_err();
        assert!(error.to_string().contains("install it with:"), "{error}");
        assert!(error.to_string().contains("postgresql"), "{error}");
    }

    #[test]
    fn a_chosen_folder_is_the_only_one_and_its_fault_is_said() {
        let (root, mut search) = machine();
        fake(&root.path().join("usr/lib/postgresql/16/bin"), "16.2");
        search.chosen = Some(root.path().join("old"));
        fake(&root.path().join("old"), "12.3");
        let error = search.find_or_fetch(account(), None).unwrap_err();
        assert!(error.to_string().contains("12 is too old"), "{error}");
    }
}
