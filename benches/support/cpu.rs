//! Processor time of processes, from `/proc`; nothing where there is none.

use std::fs;
use std::time::Duration;

/// Length of a tick of `/proc/*/stat`: Linux shows 100 a second on every machine.
const TICK: Duration = Duration::from_millis(10);

/// One line of `/proc/<pid>/stat`, as far as we use it.
struct Stat {
    parent: u32,
    own: u32,
    /// Of children that have ended.
    children: u32,
}

fn stat(pid: &str) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number)?.parse::<u32>().ok();
    Some(Stat {
        parent: field(1)?,
        own: field(11)? + field(12)?,
        children: field(13)? + field(14)?,
    })
}

/// What a process has used so far.
pub(crate) fn of_process(pid: u32) -> Option<Duration> {
    Some(stat(&pid.to_string())?.own * TICK)
}

/// What this process and its ended children have used so far.
pub(crate) fn of_self() -> Option<Duration> {
    let stat = stat("self")?;
    Some((stat.own + stat.children) * TICK)
}

/// What a process with all its children, ended or not, has used so far.
pub(crate) fn of_family(pid: u32) -> Option<Duration> {
    let parent = stat(&pid.to_string())?;
    let living: u32 = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| stat(entry.ok()?.file_name().to_str()?))
        .filter(|stat| stat.parent == pid)
        .map(|stat| stat.own)
        .sum();
    Some((parent.own + parent.children + living) * TICK)
}
