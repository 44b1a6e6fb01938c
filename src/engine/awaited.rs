//! Clients that wait for the end of an event, however many: no task, connection or thread each.
//!
//! One task looks for all of them at once, over a connection of its own: for those who just came, when
//! an outcome is told of (on this node, or by another's notification), and by polling, which is the
//! truth. Records are read by a second task, a few at a time and each once for all who ask; the bytes of
//! long answers that are being sent are counted, so that many who are released together do not fill
//! the memory. Both tasks are begun anew if they end.
//!
//! Who waits holds neither what it sent nor what it will get.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use crate::domain::EventKey;
use crate::domain::operation::{Record, Stored};
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
/// Questions that may wait for the reader; it takes as many at once.
const QUESTIONS: usize = 4_096;
/// Longest wait for a record: a read takes milliseconds, and some may be before it.
const READ_TIME: Duration = Duration::from_secs(15);
/// Bodies up to here are not counted, in bytes.
const SHORT_BODY: usize = 64 * 1_024;
/// Longer ones that may be on their way to clients at once, in KiB.
const BODIES_KIB: usize = 128 * 1_024;
/// Longest wait for those that are on their way.
const BODY_TIME: Duration = Duration::from_secs(2);

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

/// Whose record is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Of {
    /// What a source's key names now.
    Key(i32, EventKey),
    /// An event, whatever its key names now.
    Event(Uuid),
}

#[derive(Debug)]
struct Question {
    of: Of,
    answer: oneshot::Sender<Answer>,
}

/// Who asks for the same.
type Askers = Vec<oneshot::Sender<Answer>>;

/// A body whose bytes are counted until the last who sends it is done.
struct Counted {
    body: Bytes,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
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
    pub(super) async fn record_of_key(&self, source_id: i32, key: &EventKey) -> Answer {
        self.ask(Of::Key(source_id, key.clone())).await
    }

    /// The record of an event, whatever its key names by now.
    pub(super) async fn record(&self, event: Uuid) -> Answer {
        self.ask(Of::Event(event)).await
    }

    async fn ask(&self, of: Of) -> Answer {
        let (answer, answered) = oneshot::channel();
        let question = Question { of, answer };
        let silent = || StoreError::Unavailable("records are not read in time".into());
        let asked = async {
            self.questions.send(question).await.map_err(|_| silent())?;
            answered.await.map_err(|_| silent())?
        };
        tokio::time::timeout(READ_TIME, asked)
            .await
            .unwrap_or_else(|_| Err(silent()))
    }

    /// How many may wait at once.
    pub(super) fn most(&self) -> usize {
        self.most
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

/// Reads records for whoever asks: what many ask for is read once.
async fn read(store: Store, asked: Arc<AsyncMutex<mpsc::Receiver<Question>>>) {
    let mut asked = asked.lock().await;
    let bodies = Arc::new(Semaphore::new(BODIES_KIB));
    let mut questions = Vec::new();
    while asked.recv_many(&mut questions, QUESTIONS).await > 0 {
        let mut askers: HashMap<Of, Askers> = HashMap::new();
        for question in questions.drain(..) {
            if !question.answer.is_closed() {
                askers.entry(question.of).or_default().push(question.answer);
            }
        }
        let mut askers: Vec<(Of, Askers)> = askers.into_iter().collect();
        while !askers.is_empty() {
            let some = askers.split_off(askers.len().saturating_sub(READ_RECORDS));
            answer(&store, &bodies, some).await;
        }
    }
}

/// Answers those who ask for these records.
async fn answer(store: &Store, bodies: &Arc<Semaphore>, askers: Vec<(Of, Askers)>) {
    let (mut by_key, mut by_id) = (Vec::new(), Vec::new());
    for (of, askers) in askers {
        match of {
            Of::Key(source, key) => by_key.push(((source, key), askers)),
            Of::Event(id) => by_id.push((id, askers)),
        }
    }
    let keys: Vec<(i32, &EventKey)> = by_key.iter().map(|((s, key), _)| (*s, key)).collect();
    let ids: Vec<Uuid> = by_id.iter().map(|(id, _)| *id).collect();
    let read = store.operations(&keys, &ids).await;
    let number = keys.len() + ids.len();
    let askers = by_key.into_iter().map(|(_, askers)| askers);
    let askers = askers.chain(by_id.into_iter().map(|(_, askers)| askers));
    match read {
        Ok(records) => {
            let mut long = Vec::new();
            for (askers, record) in askers.zip(records) {
                match record {
                    Some(record) if body_bytes(&record) > SHORT_BODY => long.push((askers, record)),
                    record => tell(askers, || Ok(record.clone())),
                }
            }
            for (askers, record) in long {
                match counted(bodies, record, BODY_TIME).await {
                    Some(record) => tell(askers, || Ok(Some(record.clone()))),
                    None => tell(askers, || {
                        let why = "long answers that are being sent fill their memory";
                        Err(StoreError::Unavailable(why.into()))
                    }),
                }
            }
        }
        Err(error) => {
            tracing::warn!(error = %error, records = number, "records of operations not read");
            for askers in askers {
                tell(askers, || Err(StoreError::Unavailable(error.to_string())));
            }
        }
    }
}

fn tell(askers: Askers, answer: impl Fn() -> Answer) {
    for asker in askers {
        // Whoever has left in this moment is told nothing.
        drop(asker.send(answer()));
    }
}

fn body_bytes(record: &Record) -> usize {
    match &record.stored {
        Stored::Kept(response) => response.body.len(),
        Stored::Nothing | Stored::Purged => 0,
    }
}

/// The record, its body counted; `None`: too many bytes are on their way for too long.
async fn counted(bodies: &Arc<Semaphore>, mut record: Record, most: Duration) -> Option<Record> {
    if let Stored::Kept(response) = &mut record.stored {
        let kib = response.body.len().div_ceil(1_024).min(BODIES_KIB);
        let place = Arc::clone(bodies).acquire_many_owned(u32::try_from(kib).ok()?);
        let place = tokio::time::timeout(most, place).await.ok()?.ok()?;
        let body = std::mem::take(&mut response.body);
        response.body = Bytes::from_owner(Counted {
            body,
            _place: place,
        });
    }
    Some(record)
}

#[cfg(test)]
mod tests {
    use crate::domain::operation::Response;

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
    async fn long_bodies_wait_until_others_are_sent_and_are_given_up() {
        let record = |bytes: usize| {
            let mut record = Record::sample(Uuid::nil());
            record.stored = Stored::Kept(Response::json(200, vec![b'x'; bytes]));
            record
        };
        let bodies = Arc::new(Semaphore::new(100));
        let first = counted(&bodies, record(80_000), BODY_TIME).await.unwrap();
        assert_eq!(body_bytes(&first), 80_000);
        let copy = first.clone();
        let second = counted(&bodies, record(80_000), BODY_TIME);
        let mut second = std::pin::pin!(second);
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(copy);
        let second = second.await.unwrap();
        assert_eq!(
            counted(&bodies, record(80_000), Duration::from_millis(5)).await,
            None
        );
        drop(second);
        assert!(counted(&bodies, record(200), BODY_TIME).await.is_some());
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
