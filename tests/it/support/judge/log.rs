//! Append-only, fsynced logs: one JSON line per entry.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// What a request was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The event, sent again as long as it is not acknowledged.
    Original,
    /// The same bytes, beside the original or after it.
    Copy,
    /// Other content under the key of an event that was acknowledged before.
    Conflict,
    /// A key of its own, a signature that is wrong.
    Forged,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Entry {
    /// Written by a sender before the request leaves.
    Sent {
        /// Microseconds since 1970 by the writer's clock.
        at_us: u64,
        key: String,
        kind: Kind,
        event_type: String,
        amount: i64,
    },
    /// Written by a sender when a status has come.
    Answered {
        at_us: u64,
        key: String,
        kind: Kind,
        status: u16,
        /// Whether the answer said that it is one given before.
        replayed: bool,
        took_us: u64,
    },
    /// Written by a receiver when a call has come; key and amount are those of the body.
    Called {
        at_us: u64,
        effect_key: String,
        key: String,
        behaviour: String,
    },
    /// Written by a receiver before it answers: the effect is there.
    Applied {
        at_us: u64,
        effect_key: String,
        key: String,
        amount: i64,
    },
    /// Written by a receiver when it was asked about an effect key.
    Told {
        at_us: u64,
        effect_key: String,
        /// The state that it answered.
        said: String,
        /// Whether the effect was there.
        applied: bool,
    },
}

/// Microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

struct Line {
    text: String,
    synced: Option<oneshot::Sender<()>>,
}

/// A log that its writers share. A thread of its own writes what has gathered and syncs once.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    path: PathBuf,
    lines: Sender<Line>,
}

impl Log {
    /// Opens a log for appending. Lines gather for `pace` before they are synced.
    pub(crate) fn open(path: impl Into<PathBuf>, pace: Duration) -> Self {
        let path = path.into();
        let file = File::options().create(true).append(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (lines, queue) = channel();
        thread::spawn(move || write(file, &queue, pace));
        Self { path, lines }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Hands a line over; it is on disk within the log's pace and a sync.
    pub(crate) fn append(&self, entry: &Entry) {
        self.hand_over(entry, None);
    }

    /// Returns once the line is on disk.
    pub(crate) async fn append_durably(&self, entry: &Entry) {
        let (synced, done) = oneshot::channel();
        self.hand_over(entry, Some(synced));
        done.await.expect("the log is written");
    }

    /// Returns once every line handed over before is on disk.
    pub(crate) async fn flush(&self) {
        let (synced, done) = oneshot::channel();
        let line = Line {
            text: String::new(),
            synced: Some(synced),
        };
        self.lines.send(line).expect("the log is written");
        done.await.expect("the log is written");
    }

    fn hand_over(&self, entry: &Entry, synced: Option<oneshot::Sender<()>>) {
        let text = serde_json::to_string(entry).unwrap() + "\n";
        let line = Line { text, synced };
        self.lines.send(line).expect("the log is written");
    }
}

fn write(file: File, queue: &Receiver<Line>, pace: Duration) {
    let mut file = BufWriter::new(file);
    while let Ok(first) = queue.recv() {
        thread::sleep(pace);
        let mut waiting = Vec::new();
        for line in std::iter::once(first).chain(queue.try_iter()) {
            file.write_all(line.text.as_bytes()).unwrap();
            waiting.extend(line.synced);
        }
        file.flush().unwrap();
        file.get_ref().sync_data().unwrap();
        for synced in waiting {
            // Who does not wait any more does not want to know.
            synced.send(()).ok();
        }
    }
}

/// Every entry of a log, in order. A line that cannot be read is a failure.
pub(crate) fn read(path: &Path) -> impl Iterator<Item = Entry> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    BufReader::new(file).lines().map(|line| {
        let line = line.unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    })
}
