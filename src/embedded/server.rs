//! One running `postgres` process: start, wait until it answers, stop, kill.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::account::Account;
use super::binaries::Binaries;
use super::error::{Action, EmbeddedError};
use super::guard::Guard;
use super::place::Place;
use super::postmaster::{PidFile, kill_family, signal, wait_until};

/// A start after a crash replays the log, which takes its time on a slow disk.
const START_TIME_MAX: Duration = Duration::from_mins(1);
const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// What a server is started with.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    pub(super) account: Account,
    pub(super) binaries: &'a Binaries,
    pub(super) place: &'a Place,
    pub(super) settings: Vec<(String, String)>,
    pub(super) remove: bool,
}

/// The server process, its guard beside it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    guard: Guard,
}

enum Attempt {
    Ready(Server),
    /// Processes of a killed predecessor still hold its shared memory; they end by themselves.
    Occupied(EmbeddedError),
}

impl Server {
    /// Starts the server and returns once it accepts connections.
    pub(super) fn start(launch: &Launch<'_>) -> Result<Self, EmbeddedError> {
        let end = Instant::now() + START_TIME_MAX;
        loop {
            match Self::attempt(launch, end)? {
                Attempt::Ready(server) => return Ok(server),
                Attempt::Occupied(error) if Instant::now() >= end => return Err(error),
                Attempt::Occupied(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    fn attempt(launch: &Launch<'_>, end: Instant) -> Result<Attempt, EmbeddedError> {
        let (place, data) = (launch.place, launch.place.data());
        let log = place.log();
        let opened = || format!("open {}", log.display());
        let out = OpenOptions::new().create(true).append(true).open(&log);
        let out = out.action(opened)?;
        let log_start = out.metadata().action(opened)?.len();
        let err = out.try_clone().action(opened)?;
        let mut command = launch.account.command(launch.binaries.program("postgres"));
        command.arg("-D").arg(&data).args(["-p", "5432"]);
        for (name, value) in &launch.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let mut child = command
            .current_dir(place.dir())
            .stdout(Stdio::from(out))
            .stderr(Stdio::from(err))
            .spawn()
            .action(|| "run postgres".to_owned())?;
        let pid = child.id();
        let guard = Guard::start(&data, pid, launch.remove.then(|| place.dir()));
        let guard = match guard {
            Ok(guard) => guard,
            Err(error) => {
                kill_family(pid);
                drop(child.wait());
                return Err(error);
            }
        };
        let ready = || PidFile::read(&data).is_some_and(|file| file.pid == pid && file.ready);
        let mut exited = None;
        wait_until(end.saturating_duration_since(Instant::now()), || {
            exited = child.try_wait().ok().flatten();
            exited.is_some() || ready()
        });
        if exited.is_none() && ready() {
            return Ok(Attempt::Ready(Self { child, guard }));
        }
        let problem = exited.map_or_else(
            || format!("was not ready within {} s", START_TIME_MAX.as_secs()),
            |status| format!("did not start ({status})"),
        );
        Self { child, guard }.kill();
        let said = read_from(&log, log_start);
        let error = EmbeddedError::Server {
            problem,
            tail: tail(&said),
            log,
        };
        if said.contains("is still in use") {
            return Ok(Attempt::Occupied(error));
        }
        Err(error)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Fast shutdown: clients are disconnected, open transactions rolled back, data flushed.
    pub(super) fn stop(mut self, place: &Place) -> Result<(), EmbeddedError> {
        let pid = self.child.id();
        let mut ended = !self.is_running();
        if !ended {
            signal(pid, Signal::SIGINT);
            ended = wait_until(STOP_TIME_MAX, || !self.is_running());
        }
        if ended {
            self.guard.dismiss();
            return Ok(());
        }
        self.kill();
        let log = place.log();
        Err(EmbeddedError::Server {
            problem: format!(
                "did not stop within {} s and was killed",
                STOP_TIME_MAX.as_secs()
            ),
            tail: tail(&read_from(&log, 0)),
            log,
        })
    }

    /// SIGKILL to every process of it.
    pub(super) fn kill(mut self) {
        if self.is_running() {
            kill_family(self.child.id());
        }
        drop(self.child.wait());
        self.guard.dismiss();
    }

    /// Lets the server live on without an owner; returns its process id.
    pub(super) fn release(self) -> u32 {
        self.guard.dismiss();
        self.child.id()
    }
}

/// The log from a position on; empty when it cannot be read, since it only explains a fault.
fn read_from(log: &Path, start: u64) -> String {
    let read = |mut file: File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    fs::File::open(log).and_then(read).unwrap_or_default()
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().rev().take(8).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
