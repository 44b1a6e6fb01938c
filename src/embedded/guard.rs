//! A small shell process that ends PostgreSQL when its owner dies without doing so itself.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::error::{Action, EmbeddedError};

/// Held by the owner of a running server.
#[derive(Debug)]
pub(super) struct Guard {
    shell: Child,
    leash: Option<ChildStdin>,
}

impl Guard {
    /// Watches over the server `pid` on `data`; after a death also removes `remove`.
    pub(super) fn start(
        data: &Path,
        pid: u32,
        remove: Option<&Path>,
    ) -> Result<Self, EmbeddedError> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", include_str!("guard.sh"), "oncehook-guard"])
            .arg(data)
            .arg(pid.to_string())
            .arg(remove.unwrap_or(Path::new("")))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .action(|| "start the guard of the private PostgreSQL".to_owned())?;
        let leash = shell.stdin.take();
        Ok(Self { shell, leash })
    }

    /// Dismisses the guard; the server goes on without it.
    pub(super) fn dismiss(mut self) {
        if let Some(leash) = &mut self.leash {
            // A guard that is gone already need not be told.
            drop(leash.write_all(b"keep\n"));
        }
        self.leash = None;
        drop(self.shell.wait());
    }
}
