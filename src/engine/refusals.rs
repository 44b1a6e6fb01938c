//! Refused requests: counters are exact, rows and log lines are sampled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::domain::Refusal;
use crate::store::Store;
use crate::store::rejected::NewRejected;
use crate::telemetry;

use super::Rejection;

/// Rows per second for one source and reason.
const ROWS_PER_SECOND: u32 = 10;
/// Refusals of one source within a minute that raise one alert line.
const BURST: u32 = 100;
/// Rows that may wait to be written; more are only counted.
const WAITING: usize = 1_024;

enum Message {
    Row(NewRejected),
    Flush(oneshot::Sender<()>),
}

/// Sampling per (source, reason), bursts per source.
#[derive(Debug, Default)]
struct Windows {
    second: HashMap<(Option<i32>, Refusal), Window>,
    minute: HashMap<Option<i32>, Window>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    count: u32,
}

impl Window {
    /// Counts one; the number within the window that began at most `length` ago.
    fn add(&mut self, length: Duration) -> u32 {
        if self.since.elapsed() > length {
            self.since = Instant::now();
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.count
    }
}

/// The sink of refusals.
#[derive(Debug)]
pub(super) struct Refusals {
    rows: mpsc::Sender<Message>,
    windows: Arc<Mutex<Windows>>,
}

impl Refusals {
    pub(super) fn start(store: Store) -> Self {
        let (rows, waiting) = mpsc::channel(WAITING);
        tokio::spawn(write(store, waiting));
        Self {
            rows,
            windows: Arc::default(),
        }
    }

    pub(super) fn add(&self, rejection: &Rejection) {
        let source_id = rejection.source.as_ref().map(|s| s.id);
        let name = rejection.source.as_ref().map(|s| s.source.name.as_str());
        telemetry::refused(name, rejection.refusal);
        let (row_number, burst) = {
            let fresh = || Window {
                since: Instant::now(),
                count: 0,
            };
            let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
            (
                windows
                    .second
                    .entry((source_id, rejection.refusal))
                    .or_insert_with(fresh)
                    .add(Duration::from_secs(1)),
                windows
                    .minute
                    .entry(source_id)
                    .or_insert_with(fresh)
                    .add(Duration::from_mins(1)),
            )
        };
        if row_number == 1 {
            tracing::warn!(
                source = name.unwrap_or("(unknown)"),
                reason = rejection.refusal.code(),
                bytes = rejection.size,
                digest = rejection
                    .digest
                    .map(|d| d.hex().get(..12).unwrap_or_default().to_owned())
                    .unwrap_or_default(),
                hint = rejection.refusal.remedy(),
                "request refused"
            );
        }
        if burst == BURST {
            telemetry::refusal_burst(name);
            tracing::error!(
                source = name.unwrap_or("(unknown)"),
                within_s = 60,
                refused = burst,
                "burst of refused requests"
            );
        }
        if row_number <= ROWS_PER_SECOND {
            // A full queue drops the row, never the count.
            drop(self.rows.try_send(Message::Row(NewRejected {
                source_id,
                refusal: rejection.refusal,
                digest: rejection.digest,
                size: rejection.size,
                peer: rejection.peer,
            })));
        }
    }

    /// Waits until the rows queued so far are written.
    pub(super) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.rows.send(Message::Flush(done)).await.is_ok() {
            drop(tokio::time::timeout(Duration::from_secs(2), wait).await);
        }
    }
}

async fn write(store: Store, mut waiting: mpsc::Receiver<Message>) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, 256).await > 0 {
        let mut rows = Vec::new();
        let mut flushed = Vec::new();
        for message in batch.drain(..) {
            match message {
                Message::Row(row) => rows.push(row),
                Message::Flush(done) => flushed.push(done),
            }
        }
        if !rows.is_empty()
            && let Err(error) = store.record_rejected(&rows).await
        {
            tracing::warn!(error = %error, rows = rows.len(), "refused requests not recorded; the counters have them");
        }
        for done in flushed {
            if done.send(()).is_err() {
                break;
            }
        }
    }
}
