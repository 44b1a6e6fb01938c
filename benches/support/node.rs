//! A node: the release binary as `serve` runs it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::stripe;

/// A running node; killed when dropped.
pub(crate) struct Node {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Node {
    /// Starts it with one Stripe source and one `sql` handler for everything. Without dispatch it
    /// stores deliveries and leaves them.
    pub(crate) fn start(folder: &Path, url: &str, pooling: &str, dispatch: bool) -> Result<Self> {
        let config = folder.join("oncehook.toml");
        fs::write(
            &config,
            format!(
                r#"[database]
url = "{url}"
pooling = "{pooling}"
[listen]
public = "127.0.0.1:0"
api = "127.0.0.1:0"
[dispatch]
enabled = {dispatch}
[[source]]
name = "stripe"
provider = "stripe"
secrets = [{{ label = "a", value = "{}" }}]
[[handler]]
name = "books"
kind = "sql"
call = "app.book"
events = ["*:*"]
"#,
                stripe::SECRET
            ),
        )?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_oncehook"))
            .arg("--config")
            .arg(&config)
            .args(["serve", "--announce", "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Log lines are written as in production, and thrown away.
            .stderr(Stdio::null())
            .spawn()
            .context("start the node")?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let address = serde_json::from_str::<serde_json::Value>(&line)
            .ok()
            .and_then(|line| line.get("public")?.as_str()?.parse().ok());
        let Some(address) = address else {
            child.kill().ok();
            bail!("the node did not start; it said {line:?}");
        };
        Ok(Self { child, address })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as an operator would.
    pub(crate) fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the node ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
