//! The bounded queue in front of the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::store::Store;
use crate::telemetry;

use super::batch::{self, Answer};
use super::{Receipt, Submission, Unavailable};

/// Items of one batch at most.
const BATCH_ITEMS: usize = 256;
/// Bytes of one batch at most (a single larger request goes alone).
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Requests that may wait, whatever their size.
const QUEUE_REQUESTS: usize = 4_096;
/// A batch that takes longer lets a second one start beside it.
const SLOW: Duration = Duration::from_millis(250);
/// Batches in flight: one is best, a second only when a full batch waits meanwhile or the first is
/// slow.
const IN_FLIGHT_MAX: usize = 2;
/// What a waiting request costs beside its body.
const OVERHEAD_BYTES: usize = 2_048;

/// Settings of the ingest queue.
#[derive(Debug, Clone, Copy)]
pub struct IngestConfig {
    /// Bytes that may wait in the queue.
    pub queue_bytes: usize,
    /// How long a caller waits for its commit. A write that has begun goes on after that, and the
    /// sender's retry then finds the key; one that still waits in the queue is left to the retry.
    pub wait: Duration,
}

impl Default for IngestConfig {
    fn default() -> Self {
        Self {
            queue_bytes: 64 * 1024 * 1024,
            wait: Duration::from_millis(1_800),
        }
    }
}

struct Job {
    submission: Submission,
    answer: oneshot::Sender<Answer>,
    /// Set when its sender was told to come again: writing it too would keep a full queue full.
    given_up: Arc<AtomicBool>,
    bytes: usize,
    _budget: OwnedSemaphorePermit,
}

/// The way in: one queue, one writer task per node.
#[derive(Debug, Clone)]
pub struct Ingest {
    jobs: mpsc::Sender<Job>,
    /// Bytes that may still wait. A request holds its share until it was answered, so the whole
    /// budget is free exactly when nothing is queued or in flight.
    budget: Arc<Semaphore>,
    budget_bytes: u32,
    wait: Duration,
}

impl Ingest {
    /// Starts the writer. `stored` is notified after every commit that made deliveries.
    pub fn start(store: Store, config: IngestConfig, stored: Arc<Notify>) -> Self {
        let (jobs, waiting) = mpsc::channel(QUEUE_REQUESTS);
        tokio::spawn(run(store, waiting, stored));
        let budget_bytes = u32::try_from(config.queue_bytes).unwrap_or(u32::MAX >> 1);
        Self {
            jobs,
            budget: Arc::new(Semaphore::new(budget_bytes as usize)),
            budget_bytes,
            wait: config.wait,
        }
    }

    /// Waits until every item of the request is durable. Dropping the future stops nothing.
    ///
    /// # Errors
    ///
    /// [`Unavailable`]: nothing may be acknowledged; the sender should come again.
    pub async fn submit(&self, submission: Submission) -> Result<Receipt, Unavailable> {
        let full = Unavailable {
            reason: "queue_full",
        };
        let bytes = submission.request.body.len() + OVERHEAD_BYTES;
        let permits = u32::try_from(bytes).map_err(|_| full)?;
        let budget = Arc::clone(&self.budget)
            .try_acquire_many_owned(permits)
            .map_err(|error| match error {
                TryAcquireError::NoPermits => full,
                TryAcquireError::Closed => Unavailable {
                    reason: "shutting_down",
                },
            })?;
        let (answer, answered) = oneshot::channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let job = Job {
            submission,
            answer,
            given_up: Arc::clone(&given_up),
            bytes,
            _budget: budget,
        };
        self.jobs.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => full,
            mpsc::error::TrySendError::Closed(_) => Unavailable {
                reason: "shutting_down",
            },
        })?;
        match tokio::time::timeout(self.wait, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Unavailable { reason: "database" }),
            Err(_) => {
                given_up.store(true, Ordering::Release);
                Err(Unavailable { reason: "too_slow" })
            }
        }
    }

    /// Takes nothing more and waits until everything queued is written and answered.
    pub async fn flush(&self) {
        if let Ok(everything) = self.budget.acquire_many(self.budget_bytes).await {
            self.budget.close();
            drop(everything);
        }
    }
}

/// Takes as many as are waiting, writes them, answers; no linger.
async fn run(store: Store, mut jobs: mpsc::Receiver<Job>, stored: Arc<Notify>) {
    let mut waiting: Vec<Job> = Vec::new();
    let mut in_flight: JoinSet<()> = JoinSet::new();
    let mut open = true;
    let mut begun = Instant::now();
    while open || !waiting.is_empty() || !in_flight.is_empty() {
        take_waiting(&mut jobs, &mut waiting);
        let full = is_full(&waiting);
        let second = full || begun.elapsed() >= SLOW;
        if !waiting.is_empty()
            && (in_flight.is_empty() || (second && in_flight.len() < IN_FLIGHT_MAX))
        {
            let mut batch = std::mem::take(&mut waiting);
            batch.retain(|job| !job.given_up.load(Ordering::Acquire));
            if batch.is_empty() {
                continue;
            }
            begun = Instant::now();
            in_flight.spawn(write(store.clone(), batch, Arc::clone(&stored)));
            continue;
        }
        telemetry::queue_depth(waiting.len() + jobs.len());
        tokio::select! {
            Some(done) = in_flight.join_next() => {
                if let Err(error) = done {
                    // Its requests were answered "not durable" when their channels closed.
                    tracing::error!(error = %error, "a batch writer ended abnormally");
                }
            }
            // The batch in flight is slow: those who wait may go beside it.
            () = tokio::time::sleep_until((begun + SLOW).into()),
                if !waiting.is_empty() && in_flight.len() == 1 => {}
            job = jobs.recv(), if open && !full => match job {
                Some(job) => waiting.push(job),
                None => open = false,
            },
            else => {}
        }
    }
}

fn take_waiting(jobs: &mut mpsc::Receiver<Job>, waiting: &mut Vec<Job>) {
    while !is_full(waiting) {
        match jobs.recv().now_or_never() {
            Some(Some(job)) => waiting.push(job),
            _ => break,
        }
    }
}

fn is_full(waiting: &[Job]) -> bool {
    let items: usize = waiting
        .iter()
        .map(|job| job.submission.items.len().max(1))
        .sum();
    let bytes: usize = waiting.iter().map(|job| job.bytes).sum();
    items >= BATCH_ITEMS || bytes >= BATCH_BYTES
}

async fn write(store: Store, batch: Vec<Job>, stored: Arc<Notify>) {
    let submissions: Vec<&Submission> = batch.iter().map(|job| &job.submission).collect();
    let answers = batch::write(&store, &submissions).await;
    // After the COMMIT only: a handler woken earlier would find nothing.
    if answers.iter().any(Result::is_ok) {
        stored.notify_one();
    }
    for (job, answer) in batch.into_iter().zip(answers) {
        // The caller may have hung up: the event is stored all the same.
        drop(job.answer.send(answer));
    }
}
