//! The binary's other verbs, run to their end.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// Long enough for any verb; a `serve` that starts where it must not is killed after it.
const TIME_MAX: Duration = Duration::from_secs(20);

/// How a verb ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit code; `None` when it was killed.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Ran {
    /// Everything it said.
    pub(crate) fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Runs `oncehook --config FILE ARGS..` and waits for its end.
pub(crate) async fn oncehook(config: &Path, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let running = Command::new(env!("CARGO_BIN_EXE_oncehook"))
        .arg("--config")
        .arg(config)
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(TIME_MAX, running)
        .await
        .unwrap_or_else(|_| panic!("`oncehook {args:?}` does not end"))
        .unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
