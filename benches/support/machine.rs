//! Where and on what it ran.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::postgres::Postgres;

/// What a figure is worth nothing without.
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) load_before: String,
    pub(crate) postgresql: String,
    pub(crate) oncehook: String,
    pub(crate) commit: String,
}

pub(crate) fn describe(postgres: &Postgres) -> Result<Machine> {
    let (major, minor) = postgres.cluster.binaries().version();
    Ok(Machine {
        processor: line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        cores: std::thread::available_parallelism()?.get(),
        memory_gib: line_of("/proc/meminfo", "MemTotal")
            .and_then(|line| line.split(' ').next()?.parse::<u64>().ok())
            .unwrap_or(0)
            >> 20,
        load_before: fs::read_to_string("/proc/loadavg")
            .ok()
            .and_then(|line| Some(line.split(' ').nth(2)?.to_owned()))
            .unwrap_or_else(|| "unknown".to_owned()),
        postgresql: format!("{major}.{minor}"),
        oncehook: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(),
    })
}

/// The value behind `name :` in a file of `/proc`.
fn line_of(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (this, value) = line.split_once(':')?;
        (this.trim() == name).then(|| value.trim().to_owned())
    })
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--", "src", "Cargo.lock"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit} with changes"),
    }
}
