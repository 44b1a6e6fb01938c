//! Clients that wait for the end of an event, however many: no task, connection or thread each.
//!
//! One task looks for all of them at once, over a connection of its own: for those who just came, when
//! an outcome is told of (on this node, or by another's notification), and by polling, which is the
//! truth. Records are read by a second task, a few at a time, so that answers of many who are released
//! together do not stand in memory at once. Both are begun anew if they end.
//!
//! Who waits holds neither what it sent nor what it will get.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use crate::domain::EventKey;
use crate::domain::operation::Record;
use crate::store::{OperationEnd, Store, StoreError, Wake};
use crate::telemetry;

/// Clients that may wait on a node unless said otherwise.
pub(super) const WAITING_MAX: usize = 10_000;
/// Least time between two looks at all who wait: what ends meanwhile is found by one.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// Time between looks at all where nothing is told.
const POLL: Duration = Duration::from_millis(500);
/// After a look that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(250);
/// Events looked at by one statement.
const LOOK_EVENTS: usize = 2_000;
/// Records read by one statement: each may bring a response of 8 MiB.
const READ_RECORDS: usize = 16;
/// Questions that may wait for the reader.
const QUESTIONS: usize = 4_096;
/// Longest wait for a record: what is asked takes milliseconds.
const READ_TIME: Duration = Duration::from_secs(5);

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    /// Nothing of the event is under way any more.
    Ended,
    /// The time is over.
    TimeUp,
    /// So many wait already that this one was not taken.
    Full,
    /// The node is on its way out.
    Closed,
}

type Waiter = oneshot::Sender<Waited>;

/// Who waits, by the event and a number of its own.
#[derive(Debug, Default)]
struct Waiting {
    by_event: HashMap<Uuid, HashMap<u64, Waiter>>,
    /// Events for which somebody has come since the last look.
    fresh: HashSet<Uuid>,
    count: usize,
    next: u64,
    closed: bool,
}

impl Waiting {
    fn leave(&mut self, event: Uuid, number: u64) {
        if let Some(waiters) = self.by_event.get_mut(&event)
            && waiters.remove(&number).is_some()
        {
            self.count -= 1;
            if waiters.is_empty() {
                self.by_event.remove(&event);
            }
        }
    }

    fn release(&mut self, event: Uuid, how: &Waited) {
        for (_, waiter) in self.by_event.remove(&event).unwrap_or_default() {
            self.count -= 1;
            // Whoever has left in this moment is told nothing.
            drop(waiter.send(how.clone()));
        }
    }
}

type Answer = Result<Option<Record>, StoreError>;

#[derive(Debug)]
struct Question {
    source_id: i32,
    key: EventKey,
    answer: oneshot::Sender<Answer>,
}

/// All who wait on this node.
#[derive(Debug)]
pub(super) struct Awaited {
    waiting: Mutex<Waiting>,
    most: usize,
    /// Somebody came.
    came: Notify,
    /// Something has ended, here or elsewhere.
    told: Notify,
    /// Whether it was told of since the last look at all.
    tidings: AtomicBool,
    questions: mpsc::Sender<Question>,
}

impl Awaited {
    /// The desk, and its tasks.
    pub(super) fn start(
        store: &Store,
        wake: &Arc<Wake>,
        most: usize,
    ) -> (Arc<Self>, [JoinHandle<()>; 3]) {
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let awaited = Arc::new(Self {
            waiting: Mutex::default(),
            most,
            came: Notify::new(),
            told: Notify::new(),
            tidings: AtomicBool::new(false),
            questions,
        });
        let look = supervised("look", {
            let (store, awaited) = (store.clone(), Arc::clone(&awaited));
            move || look(store.clone(), Arc::clone(&awaited))
        });
        let asked = Arc::new(AsyncMutex::new(asked));
        let read = supervised("read", {
            let store = store.clone();
            move || read(store.clone(), Arc::clone(&asked))
        });
        let hear = supervised("hear", {
            let (wake, awaited) = (Arc::clone(wake), Arc::clone(&awaited));
            move || hear(Arc::clone(&wake), Arc::clone(&awaited))
        });
        (awaited, [look, read, hear])
    }

    /// Waits until nothing of the event is under way any more, at most until then.
    pub(super) async fn wait(&self, event: Uuid, until: Instant) -> Waited {
        let (waiter, released) = oneshot::channel();
        let number = {
            let mut waiting = self.lock();
            if waiting.closed {
                return Waited::Closed;
            }
            if waiting.count >= self.most {
                return Waited::Full;
            }
            let number = waiting.next;
            waiting.next += 1;
            waiting.count += 1;
            let waiters = waiting.by_event.entry(event).or_default();
            waiters.insert(number, waiter);
            waiting.fresh.insert(event);
            number
        };
        self.came.notify_one();
        // Also when its client has gone and nobody polls this any more.
        let _place = Place {
            awaited: self,
            event,
            number,
        };
        match tokio::time::timeout_at(until, released).await {
            Ok(Ok(how)) => how,
            Ok(Err(_)) => Waited::Closed,
            Err(_) => Waited::TimeUp,
        }
    }

    /// This event has ended, or some have: those who wait for them are released by the next look.
    pub(super) fn tell(&self, event: Option<Uuid>) {
        match event {
            Some(event) => {
                self.lock().fresh.insert(event);
            }
            None => self.tidings.store(true, Ordering::Release),
        }
        self.told.notify_one();
    }

    /// The record under a key.
    pub(super) async fn record(&self, source_id: i32, key: &EventKey) -> Answer {
        let (answer, answered) = oneshot::channel();
        let question = Question {
            source_id,
            key: key.clone(),
            answer,
        };
        let silent = || StoreError::Unavailable("records are not read in time".into());
        let asked = async {
            self.questions.send(question).await.map_err(|_| silent())?;
            answered.await.map_err(|_| silent())?
        };
        tokio::time::timeout(READ_TIME, asked)
            .await
            .unwrap_or_else(|_| Err(silent()))
    }

    /// Releases everybody, and takes nobody any more.
    pub(super) fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        let events: Vec<Uuid> = waiting.by_event.keys().copied().collect();
        for event in events {
            waiting.release(event, &Waited::Closed);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events to look at: all, or those for which somebody just came.
    fn events(&self, all: bool) -> Vec<Uuid> {
        let mut waiting = self.lock();
        telemetry::operations_waiting(waiting.count);
        let fresh = std::mem::take(&mut waiting.fresh);
        if all {
            waiting.by_event.keys().copied().collect()
        } else {
            let waits = |event: &Uuid| waiting.by_event.contains_key(event);
            fresh.into_iter().filter(waits).collect()
        }
    }
}

/// One who waits, in the list for as long as this lives.
struct Place<'a> {
    awaited: &'a Awaited,
    event: Uuid,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.awaited.lock().leave(self.event, self.number);
    }
}

/// Runs a task anew whenever it ends: thousands would wait for it in vain.
fn supervised<F: Future<Output = ()> + Send + 'static>(
    name: &'static str,
    begin: impl Fn() -> F + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let mut task = Ending(tokio::spawn(begin()));
            if let Err(error) = (&mut task.0).await {
                tracing::error!(task = name, error = %error, "a task for waiting clients ended abnormally and begins anew");
            }
            tokio::time::sleep(FAILED_PAUSE).await;
        }
    })
}

/// Ends a task with its supervisor.
struct Ending(JoinHandle<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Hears of ends, on this node and on others.
async fn hear(wake: Arc<Wake>, awaited: Arc<Awaited>) {
    let mut ends = wake.operation_ends();
    // What was said before this began to listen.
    awaited.tell(None);
    loop {
        match ends.recv().await {
            Ok(OperationEnd::One(event)) => awaited.tell(Some(event)),
            Ok(OperationEnd::Some) | Err(RecvError::Lagged(_)) => awaited.tell(None),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Looks for what has ended.
async fn look(store: Store, awaited: Arc<Awaited>) {
    // After a start anew nobody knows what was told.
    let mut all_at = Instant::now();
    loop {
        tokio::select! {
            () = awaited.came.notified() => {}
            () = awaited.told.notified() => {}
            () = tokio::time::sleep_until(all_at) => {}
        }
        let all = awaited.tidings.swap(false, Ordering::AcqRel) || Instant::now() >= all_at;
        let events = awaited.events(all);
        let (mut failed, began) = (false, Instant::now());
        for events in events.chunks(LOOK_EVENTS) {
            match store.operations_ended(events).await {
                Ok(ended) => {
                    let mut waiting = awaited.lock();
                    for event in ended {
                        waiting.release(event, &Waited::Ended);
                    }
                }
                Err(error) => {
                    tracing::debug!(error = %error, "ends of operations not looked for");
                    failed = true;
                    break;
                }
            }
        }
        if failed {
            // Whoever was looked for is looked for again, with all others.
            all_at = Instant::now();
            tokio::time::sleep(FAILED_PAUSE).await;
        } else {
            if all {
                all_at = Instant::now() + POLL;
            }
            // However many wait, looking for them takes a third of the time at most.
            tokio::time::sleep(LOOK_PAUSE.max(began.elapsed() * 2)).await;
        }
    }
}

/// Reads records for whoever asks, as many as ask meanwhile by one statement.
async fn read(store: Store, asked: Arc<AsyncMutex<mpsc::Receiver<Question>>>) {
    let mut asked = asked.lock().await;
    let mut questions = Vec::with_capacity(READ_RECORDS);
    while asked.recv_many(&mut questions, READ_RECORDS).await > 0 {
        questions.retain(|question| !question.answer.is_closed());
        if questions.is_empty() {
            continue;
        }
        let keys: Vec<(i32, &EventKey)> = questions
            .iter()
            .map(|question| (question.source_id, &question.key))
            .collect();
        let read = store.operations(&keys).await;
        match read {
            Ok(records) => {
                let mut records = records.into_iter();
                for question in questions.drain(..) {
                    let record = records.next().flatten();
                    drop(question.answer.send(Ok(record)));
                }
            }
            Err(error) => {
                tracing::warn!(error = %error, questions = questions.len(), "records of operations not read");
                for question in questions.drain(..) {
                    let error = StoreError::Unavailable(error.to_string());
                    drop(question.answer.send(Err(error)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desk(most: usize) -> Awaited {
        Awaited {
            waiting: Mutex::default(),
            most,
            came: Notify::new(),
            told: Notify::new(),
            tidings: AtomicBool::new(false),
            questions: mpsc::channel(1).0,
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[tokio::test]
    async fn whoever_leaves_makes_room_and_is_forgotten() {
        let desk = desk(1);
        let event = Uuid::from_u128(1);
        assert_eq!(desk.wait(event, soon()).await, Waited::TimeUp);
        {
            // Its client is gone: the future is dropped.
            let gone = desk.wait(event, late());
            let mut gone = std::pin::pin!(gone);
            assert!(futures_util::poll!(&mut gone).is_pending());
            assert_eq!(desk.wait(event, late()).await, Waited::Full);
        }
        assert_eq!(desk.lock().count, 0);
        assert!(desk.lock().by_event.is_empty());
        assert!(desk.events(true).is_empty());
    }

    #[tokio::test]
    async fn an_end_releases_all_who_wait_for_it_and_nobody_else() {
        let desk = desk(10);
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let (first, second, third) = (
            desk.wait(one, late()),
            desk.wait(one, late()),
            desk.wait(other, late()),
        );
        let (mut first, mut second, mut third) = (
            std::pin::pin!(first),
            std::pin::pin!(second),
            std::pin::pin!(third),
        );
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(futures_util::poll!(&mut third).is_pending());
        let mut fresh = desk.events(false);
        fresh.sort_unstable();
        assert_eq!(fresh, [one, other]);
        assert!(desk.events(false).is_empty(), "each is fresh once");
        desk.tell(Some(one));
        assert_eq!(desk.events(false), [one], "it is looked for at once");
        desk.tell(Some(Uuid::from_u128(3)));
        assert!(desk.events(false).is_empty(), "nobody waits for it");
        desk.lock().release(one, &Waited::Ended);
        assert_eq!((first.await, second.await), (Waited::Ended, Waited::Ended));
        assert!(futures_util::poll!(&mut third).is_pending());
        desk.close();
        assert_eq!(third.await, Waited::Closed);
        assert_eq!(desk.wait(one, late()).await, Waited::Closed);
    }
}
