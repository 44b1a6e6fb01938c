//! A child process that ends with the test process, however that died.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Starts the program and ends it when standard input does: a pipe that only its owner holds open, as
/// `src/embedded/guard.sh` has it for PostgreSQL. The shell is the program's parent, so that its
/// process id is nobody else's until then.
const HOLD: &str = "trap '' INT HUP TERM; \"$@\" & program=$!; read -r _; kill -KILL \"$program\"; wait \"$program\"";

/// A running program; killed when dropped.
#[derive(Debug)]
pub(crate) struct Leashed {
    shell: Child,
}

impl Leashed {
    /// Starts a program, whose standard error goes to `log`.
    pub(crate) fn start<S: AsRef<OsStr>>(
        program: &OsStr,
        args: impl IntoIterator<Item = S>,
        log: File,
    ) -> io::Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", HOLD, "leash"])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()?;
        Ok(Self { shell })
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        // Closes its standard input first.
        self.shell.wait().ok();
    }
}
