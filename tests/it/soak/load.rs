//! The senders: so many events a second whatever the answers, through a balancer that is late.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Course;
use crate::support::dice::dice;
use crate::support::judge::provider::Told;
use crate::support::judge::trial::{PAID, REFUNDED, SHIPPED};
use crate::support::judge::{Message, Provider};
use crate::support::{Node, TestDb, until};

/// How long a provider waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before it comes again.
const BACK_OFF: Duration = Duration::from_millis(200);
/// Events under way; more wait, and count as held up.
const IN_FLIGHT: usize = 4_096;
const CLIENTS: usize = 64;

/// The nodes' addresses, and which of them are said to be up.
#[derive(Debug)]
pub(super) struct Balancer {
    addresses: [SocketAddr; 2],
    up: [AtomicBool; 2],
    pids: Mutex<[u32; 2]>,
}

impl Balancer {
    pub(super) fn over(nodes: [&Node; 2]) -> Self {
        Self {
            addresses: nodes.map(|node| node.public),
            up: [AtomicBool::new(true), AtomicBool::new(true)],
            pids: Mutex::new(nodes.map(Node::pid)),
        }
    }

    pub(super) fn set_down(&self, node: usize) {
        self.up[node].store(false, Ordering::Relaxed);
    }

    pub(super) fn set_up(&self, node: usize, pid: u32) {
        self.pids.lock().unwrap()[node] = pid;
        self.up[node].store(true, Ordering::Relaxed);
    }

    pub(super) fn pids(&self) -> [u32; 2] {
        *self.pids.lock().unwrap()
    }

    fn pick(&self, turn: u64) -> SocketAddr {
        let wanted = usize::from(turn % 2 == 1);
        let up = |node: usize| self.up[node].load(Ordering::Relaxed);
        let node = if up(wanted) || !up(1 - wanted) {
            wanted
        } else {
            1 - wanted
        };
        self.addresses[node]
    }
}

/// What is counted while the load is on.
#[derive(Debug, Default)]
pub(super) struct Stats {
    /// From when an event was due to its acknowledgement, in microseconds; taken by the sampler.
    pub(super) waits_us: Mutex<Vec<u32>>,
    pub(super) acknowledged: AtomicU64,
    /// Of these, for the capacity.
    pub(super) before: AtomicU64,
    /// Sent again because no answer came or it was not 200.
    pub(super) again: AtomicU64,
    /// Answers 503.
    pub(super) unavailable: AtomicU64,
    pub(super) copies: AtomicU64,
    pub(super) conflicts: AtomicU64,
    pub(super) forged: AtomicU64,
    /// Began late because too many were under way.
    pub(super) held_up: AtomicU64,
}

/// Events, numbered through the whole run.
#[derive(Clone)]
pub(super) struct Load {
    provider: Provider,
    balancer: Arc<Balancer>,
    stats: Arc<Stats>,
    seed: u64,
    next: u64,
}

impl Load {
    pub(super) fn new(
        provider: Provider,
        balancer: Arc<Balancer>,
        stats: Arc<Stats>,
        seed: u64,
    ) -> Self {
        Self {
            provider,
            balancer,
            stats,
            seed,
            next: 0,
        }
    }

    /// Events a second that are acknowledged and handled when each client sends its next one as
    /// soon as it has its answer.
    pub(super) async fn capacity(&mut self, time: Duration, db: &TestDb) -> f64 {
        let begin = Instant::now();
        let number = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (load, number) = (self.clone(), Arc::clone(&number));
            clients.spawn(async move {
                while begin.elapsed() < time {
                    let n = number.fetch_add(1, Ordering::Relaxed);
                    load.event(n, Instant::now()).await;
                }
            });
        }
        clients.join_all().await;
        until("what was sent for the capacity is handled", async || {
            db.count("delivery WHERE failures = 0").await == 0
        })
        .await;
        self.next = number.load(Ordering::Relaxed);
        let handled = self.next as f64 / begin.elapsed().as_secs_f64();
        self.stats.before.store(self.next, Ordering::Relaxed);
        self.stats.waits_us.lock().unwrap().clear();
        handled
    }

    /// Offers events until the course is over and all are acknowledged; returns how many.
    pub(super) async fn run(self, course: Course, rate: f64) -> u64 {
        let places = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut under_way = JoinSet::new();
        for n in 0u64.. {
            let due = course.began + Duration::from_secs_f64(n as f64 / rate);
            if due >= course.end() {
                under_way.join_all().await;
                return n;
            }
            tokio::time::sleep_until(due.into()).await;
            let free = Arc::clone(&places).try_acquire_owned();
            let place = if let Ok(place) = free {
                place
            } else {
                self.stats.held_up.fetch_add(1, Ordering::Relaxed);
                Arc::clone(&places).acquire_owned().await.unwrap()
            };
            let load = self.clone();
            under_way.spawn(async move {
                load.event(load.next + n, due).await;
                drop(place);
            });
            while under_way.try_join_next().is_some() {}
        }
        0
    }

    /// One event until it is acknowledged, and whatever comes with it.
    async fn event(&self, n: u64, due: Instant) {
        let dice = |purpose| dice(self.seed, n, purpose);
        let event_type = match dice(1) % 100 {
            0..10 => SHIPPED,
            10..15 => REFUNDED,
            _ => PAID,
        };
        let number = usize::try_from(n).unwrap();
        let event = Message::original(number, event_type);
        if dice(2) % 100 == 0 {
            self.stats.forged.fetch_add(1, Ordering::Relaxed);
            let forged = Message::forged(number);
            self.send(n, &forged).await;
        }
        let copied = dice(3) % 10 == 0;
        // Half of the copies come beside the original, half of them later.
        if copied && dice(4) % 2 == 0 {
            self.stats.copies.fetch_add(1, Ordering::Relaxed);
            let copy = event.copy();
            tokio::join!(self.until_told(n, &event), self.send(n + 1, &copy));
        } else {
            self.until_told(n, &event).await;
        }
        let wait = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.stats.waits_us.lock().unwrap().push(wait);
        self.stats.acknowledged.fetch_add(1, Ordering::Relaxed);
        if copied && dice(4) % 2 == 1 {
            sleep(Duration::from_millis(dice(6) % 3_000)).await;
            self.stats.copies.fetch_add(1, Ordering::Relaxed);
            self.send(n + 1, &event.copy()).await;
        }
        if dice(7) % 1_000 == 0 {
            self.stats.conflicts.fetch_add(1, Ordering::Relaxed);
            self.until_told(n, &event.conflict()).await;
        }
    }

    async fn until_told(&self, n: u64, message: &Message) {
        for turn in n.. {
            match self.send(turn, message).await {
                Some(Told { status: 200, .. }) => return,
                told => {
                    self.stats.again.fetch_add(1, Ordering::Relaxed);
                    let unavailable = told.is_some_and(|told| told.status == 503);
                    self.stats
                        .unavailable
                        .fetch_add(u64::from(unavailable), Ordering::Relaxed);
                    sleep(BACK_OFF).await;
                }
            }
        }
    }

    async fn send(&self, turn: u64, message: &Message) -> Option<Told> {
        let node = self.balancer.pick(turn);
        let told = timeout(PATIENCE, self.provider.send(node, message)).await;
        told.ok().flatten()
    }
}
