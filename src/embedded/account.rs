//! Whom PostgreSQL runs as: ourselves, or an unprivileged user when we are root.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::{Uid, User};

use super::error::EmbeddedError;

/// The user whose processes and files the cluster consists of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    /// User and group to become; `None` when we are not root.
    become_user: Option<(u32, u32)>,
}

impl Account {
    /// Ourselves, or as root: the owner of existing data, else `postgres`, else `nobody`.
    pub(super) fn detect(data: &Path) -> Result<Self, EmbeddedError> {
        if !Uid::effective().is_root() {
            return Ok(Self { become_user: None });
        }
        if let Ok(existing) = data.metadata()
            && existing.uid() != 0
        {
            return Ok(Self {
                become_user: Some((existing.uid(), existing.gid())),
            });
        }
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .map(|user| Self {
                become_user: Some((user.uid.as_raw(), user.gid.as_raw())),
            })
            .ok_or(EmbeddedError::NoAccount)
    }

    /// The user id its files have.
    pub(super) fn uid(self) -> u32 {
        self.become_user
            .map_or_else(|| Uid::effective().as_raw(), |(uid, _)| uid)
    }

    /// A command that runs as this user, in its own process group so that Ctrl-C in our
    /// terminal does not reach it, and without the caller's `PG*` variables.
    ///
    /// The standard library also clears the supplementary groups when root gives up its user id.
    pub(super) fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Some((uid, gid)) = self.become_user {
            command.uid(uid).gid(gid);
        }
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        // The messages of the server are read by `server`, so they must not be translated.
        command.env("LC_ALL", "C").process_group(0);
        command.stdin(Stdio::null());
        command
    }

    /// Gives a file or folder to this user.
    pub(super) fn own(self, path: &Path) -> io::Result<()> {
        match self.become_user {
            Some((uid, gid)) => chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Whether this user can enter the folder and write there. It is tried, not computed, so
    /// that access lists and read-only mounts count too.
    pub(super) fn can_use(self, dir: &Path) -> bool {
        self.command("/bin/sh")
            .arg("-c")
            .arg(r#"cd -- "$1" && : > .probe && rm .probe"#)
            .arg("sh")
            .arg(dir)
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}
