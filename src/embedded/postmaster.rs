//! The server's processes, seen from outside: its pid file, signals, what is left of a dead one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often a process is looked at while we wait for it.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What `postmaster.pid` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PidFile {
    pub(super) pid: u32,
    pub(super) ready: bool,
}

impl PidFile {
    /// Reads the file; `None` when there is none or it is not written out yet.
    pub(super) fn read(data: &Path) -> Option<Self> {
        let text = fs::read_to_string(path(data)).ok()?;
        let mut lines = text.lines();
        // A standalone backend writes its id negated.
        let pid = lines.next()?.trim().trim_start_matches('-').parse().ok()?;
        // The eighth line is the state, the same that `pg_ctl -w` waits for.
        let ready = lines.nth(6).is_some_and(|line| line.trim() == "ready");
        Some(Self { pid, ready })
    }
}

fn path(data: &Path) -> PathBuf {
    data.join("postmaster.pid")
}

/// Sends a signal; a process that is gone already is no fault.
pub(super) fn signal(pid: u32, signal: Signal) {
    let sent = i32::try_from(pid).map(|pid| kill(Pid::from_raw(pid), signal));
    if !matches!(sent, Ok(Ok(()) | Err(Errno::ESRCH))) {
        tracing::debug!("process {pid} cannot be sent {signal}");
    }
}

/// Whether a process with this id runs, whosever it is. In a container without an init nobody
/// collects an orphan: such a zombie is dead all the same.
pub(super) fn is_alive(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
        && !is_zombie(pid)
}

/// Waits until `gone` holds; `false` when it did not in time.
pub(super) fn wait_until(time_max: Duration, mut gone: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time_max;
    loop {
        if gone() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        sleep(LOOK_EVERY);
    }
}

/// Ends the server that a killed predecessor left running on this data folder, gently first.
///
/// A pid file whose number now belongs to another program is removed: PostgreSQL itself would
/// take that program for a running server and refuse to start.
pub(super) fn end_leftover(data: &Path) {
    let Some(PidFile { pid, .. }) = PidFile::read(data) else {
        return;
    };
    if pid == std::process::id() || !is_alive(pid) {
        return;
    }
    match serves(pid, data) {
        Some(true) => {
            tracing::info!("stopping PostgreSQL {pid}, left over from a killed process");
            for (how, time_max) in [
                (Signal::SIGINT, Duration::from_secs(20)),
                (Signal::SIGQUIT, Duration::from_secs(10)),
                (Signal::SIGKILL, Duration::from_secs(5)),
            ] {
                signal(pid, how);
                if wait_until(time_max, || !is_alive(pid)) {
                    return;
                }
            }
        }
        Some(false) => drop(fs::remove_file(path(data))),
        None => {}
    }
}

/// Whether the process is a server on this data folder; `None` when it cannot be told.
fn serves(pid: u32, data: &Path) -> Option<bool> {
    let data = data.to_str()?;
    if let Ok(words) = fs::read(format!("/proc/{pid}/cmdline")) {
        return Some(
            words
                .split(|byte| *byte == 0)
                .any(|word| word == data.as_bytes()),
        );
    }
    let output = Command::new("ps")
        .args(["-ww", "-o", "args=", "-p", &pid.to_string()])
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).contains(data))
}

/// Kills the whole server with SIGKILL, as if the machine had lost power.
///
/// The postmaster is stopped first, so that it starts no new process while its children are
/// listed. Killed alone, it would leave busy children at work for a while.
pub(super) fn kill_family(postmaster: u32) {
    signal(postmaster, Signal::SIGSTOP);
    let children = children(postmaster);
    for pid in &children {
        signal(*pid, Signal::SIGKILL);
    }
    signal(postmaster, Signal::SIGKILL);
    wait_until(Duration::from_secs(5), || {
        children.iter().all(|pid| !is_alive(*pid))
    });
}

/// Removes the System V segment that a killed server left in the kernel, before its data folder
/// goes. A server started again on the folder would do so itself.
pub(super) fn remove_segment(data: &Path) {
    let Some(id) = fs::read_to_string(path(data))
        .ok()
        .and_then(|text| segment(&text))
    else {
        return;
    };
    let removed = Command::new("ipcrm").args(["-m", &id.to_string()]).output();
    if !removed.is_ok_and(|output| output.status.success()) {
        tracing::debug!("shared memory segment {id} stays");
    }
}

/// The seventh line of the pid file holds the segment's key and id.
fn segment(pid_file: &str) -> Option<i64> {
    let line = pid_file.lines().nth(6)?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn children(parent: u32) -> Vec<u32> {
    let Ok(output) = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| {
            let (pid, ppid) = line.trim().split_once(char::is_whitespace)?;
            let ppid: u32 = ppid.trim().parse().ok()?;
            (ppid == parent).then(|| pid.parse().ok()).flatten()
        })
        .collect()
}

fn is_zombie(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('Z'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_file_tells_when_the_server_is_ready() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| fs::write(path(dir.path()), text).unwrap();
        assert_eq!(PidFile::read(dir.path()), None);
        write("");
        assert_eq!(PidFile::read(dir.path()), None);
        write("4711\n/data\n1\n5432\n/socket\n\n  1 2\nstarting\n");
        let read = PidFile::read(dir.path()).unwrap();
        assert_eq!((read.pid, read.ready), (4711, false));
        write("4711\n/data\n1\n5432\n/socket\n\n  1 2\nready   \n");
        assert!(PidFile::read(dir.path()).unwrap().ready);
        assert_eq!(segment("1\n/d\n1\n5432\n/s\n\n  66047   12\n"), Some(12));
        assert_eq!(segment("1\n/d\n"), None);
    }

    #[test]
    fn a_recycled_process_id_is_not_taken_for_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = Command::new("sleep").arg("30").spawn().unwrap();
        fs::write(path(dir.path()), format!("{}\n", other.id())).unwrap();
        end_leftover(dir.path());
        assert!(!path(dir.path()).exists());
        assert!(other.try_wait().unwrap().is_none(), "it was left alone");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
