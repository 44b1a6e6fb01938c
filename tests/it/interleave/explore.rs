//! The scheduler: runs one order of statements after another until there is none left.
//!
//! Orders are found by running them. At each point it is known which sessions are at a statement;
//! one is let go, and the point is not over until every session is again at a statement, at its
//! end, or waits for a lock (`pg_blocking_pids` says for whom). The other choices of a point are
//! taken in later runs. So orders that a lock makes impossible never come up, and what a session
//! does after a deadlock is explored like the rest.
//!
//! An order is written as the sessions' letters, one per statement let go: `ABBA`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::Client;

use super::step::{Session, Standing};

/// Longest time until something moves. Only a failing run waits this long.
const STUCK: Duration = Duration::from_secs(20);
/// How often a running statement is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// Runs of one order after which its points count as not reproducible.
const RERUNS: u32 = 20;

/// Which of the backends still exist, and for whom each waits. A wait counts when PostgreSQL has
/// looked for a deadlock in it: then whoever closes a circle later is its victim, whatever the
/// machine's speed. That it has looked is known by the time alone, that it waits and for whom by
/// `pg_blocking_pids` alone.
const WAITS: &str = "SELECT a.pid, pg_blocking_pids(a.pid),
       coalesce((SELECT bool_and(l.waitstart < clock_timestamp() - 4 * current_setting('deadlock_timeout')::interval)
                   FROM pg_locks l WHERE l.pid = a.pid AND NOT l.granted), false)
  FROM pg_stat_activity a WHERE a.pid = ANY ($1)";

/// What a session does in one run.
pub(super) enum Program {
    Works(BoxFuture<'static, Value>),
    /// It gets to act when another is cut off.
    Waits,
}

/// One run: what each session does, and what must hold in the end.
pub(super) struct Order {
    /// In the order of the letters.
    pub(super) programs: Vec<Program>,
    /// Gets what the programs gave.
    pub(super) check: Box<dyn FnOnce(Vec<Value>) -> LocalBoxFuture<'static, ()>>,
}

/// Switches away from a session that could have gone on: `None` for every order.
pub(super) type Bound = Option<u32>;

/// A point at which one of several sessions was let go.
#[derive(Debug, Clone)]
struct Point {
    enabled: Vec<usize>,
    /// What may be chosen here within the bound, in the order of trying.
    choices: Vec<usize>,
    at: usize,
    /// The bound left choices out.
    cut: bool,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Count {
    pub(super) orders: u64,
    /// Statements that had to wait for a lock.
    pub(super) waits: u64,
    /// Statements that PostgreSQL ended because of a deadlock.
    pub(super) deadlocks: u64,
    pub(super) reruns: u64,
    steps_max: usize,
    /// The bound left orders out.
    cut: bool,
}

/// What became of a scenario.
#[derive(Debug)]
pub(super) enum Explored {
    /// Every order within the bound was run.
    All(Count),
    /// The one order that was asked for.
    Asked,
    /// Nothing: an order of something else was asked for.
    Nothing,
}

impl Explored {
    /// Checks what must have come up in the orders, when all of them were run.
    pub(super) fn shows(self, holds: impl FnOnce(&Count) -> bool, what: &str) -> Self {
        if let Self::All(count) = &self {
            assert!(holds(count), "{what}");
        }
        self
    }

    /// Statements had to wait for locks.
    pub(super) fn waits(self, what: &str) -> Self {
        self.shows(|count| count.waits > 0, what)
    }
}

/// How one run went.
struct Ran {
    word: String,
    trace: String,
    /// The points are not those of the run before.
    diverged: bool,
}

pub(super) struct Explorer {
    pub(super) name: String,
    pub(super) sessions: Vec<Arc<Session>>,
    pub(super) changed: Arc<Notify>,
    pub(super) observer: Client,
    pub(super) bound: Bound,
}

fn letter(session: usize) -> char {
    char::from(b'A' + u8::try_from(session).unwrap())
}

/// The scenario and the order that `ONCEHOOK_ORDER=<scenario>:<order>` asks for.
pub(super) fn asked() -> Option<(String, String)> {
    let value = std::env::var("ONCEHOOK_ORDER").ok()?;
    let (scenario, word) = value
        .split_once(':')
        .expect("ONCEHOOK_ORDER=<scenario>:<order>");
    Some((scenario.to_owned(), word.to_owned()))
}

impl Explorer {
    /// Runs every order within the bound. `prepare` makes a fresh state for each. When one order
    /// was asked for, of this scenario or of another, that is all that is run.
    pub(super) async fn run(&self, mut prepare: impl AsyncFnMut(u64) -> Order) -> Explored {
        let began = Instant::now();
        let mut count = Count::default();
        if let Some((scenario, word)) = asked() {
            if scenario != self.name {
                return Explored::Nothing;
            }
            let order = prepare(0).await;
            let ran = self.once(&mut Vec::new(), &word, order, &mut count).await;
            eprintln!("interleave {}: {}\n{}", self.name, ran.word, ran.trace);
            // Another order than the one that was asked for says nothing about that one.
            assert!(
                ran.word == word && !ran.diverged,
                "order {word} cannot be followed to its end; it became {}",
                ran.word
            );
            return Explored::Asked;
        }
        let mut points: Vec<Point> = Vec::new();
        let mut runs = 0;
        loop {
            let mut reruns = 0;
            loop {
                runs += 1;
                let order = prepare(runs).await;
                let ran = self.once(&mut points, "", order, &mut count).await;
                if !ran.diverged {
                    break;
                }
                // A lock time-out struck, since this machine was busy elsewhere.
                reruns += 1;
                count.reruns += 1;
                assert!(
                    reruns < RERUNS,
                    "{}: {} is not reproducible\n{}",
                    self.name,
                    ran.word,
                    ran.trace
                );
            }
            count.orders += 1;
            count.steps_max = count.steps_max.max(points.len());
            count.cut |= points.iter().any(|point| point.cut);
            if count.orders.is_multiple_of(500) {
                eprintln!("interleave {}: {} orders so far", self.name, count.orders);
            }
            while points.last().is_some_and(|p| p.at + 1 == p.choices.len()) {
                points.pop();
            }
            match points.last_mut() {
                Some(point) => point.at += 1,
                None => break,
            }
        }
        let bound = match self.bound {
            Some(switches) if count.cut => format!("<= {switches} switches"),
            _ => "all".to_owned(),
        };
        eprintln!(
            "interleave {}: {} orders ({bound}), up to {} statements, {} waits, {} deadlocks, {} run again, {:.1} s",
            self.name,
            count.orders,
            count.steps_max,
            count.waits,
            count.deadlocks,
            count.reruns,
            began.elapsed().as_secs_f32(),
        );
        Explored::All(count)
    }

    async fn once(
        &self,
        points: &mut Vec<Point>,
        word: &str,
        order: Order,
        count: &mut Count,
    ) -> Ran {
        let results: Arc<Mutex<Vec<Value>>> =
            Arc::new(Mutex::new(vec![Value::Null; order.programs.len()]));
        for (session, program) in self.sessions.iter().zip(&order.programs) {
            session.begin(matches!(program, Program::Works(_)));
        }
        let mut tasks = tokio::task::JoinSet::new();
        for (index, program) in order.programs.into_iter().enumerate() {
            let Program::Works(program) = program else {
                continue;
            };
            let (results, session) = (Arc::clone(&results), Arc::clone(&self.sessions[index]));
            tasks.spawn(async move {
                let result = AssertUnwindSafe(program).catch_unwind().await;
                results.lock().unwrap()[index] = result.unwrap_or_else(|_| "panicked".into());
                session.end();
            });
        }
        let mut ran = Ran {
            word: String::new(),
            trace: String::new(),
            diverged: false,
        };
        let scheduled = AssertUnwindSafe(self.schedule(points, word, &mut ran, count))
            .catch_unwind()
            .await;
        for session in &self.sessions {
            session.open();
        }
        let mut failure = scheduled.err();
        if failure.is_none() && !ran.diverged {
            while tasks.join_next().await.is_some() {}
            let results = results.lock().unwrap().clone();
            for (index, result) in results.iter().enumerate() {
                writeln!(ran.trace, "  {} gave {result}", letter(index)).unwrap();
            }
            let checked = AssertUnwindSafe((order.check)(results))
                .catch_unwind()
                .await;
            failure = checked.err();
        } else if timeout(STUCK, async { while tasks.join_next().await.is_some() {} })
            .await
            .is_err()
        {
            tasks.abort_all();
        }
        if let Some(panic) = failure {
            eprintln!(
                "interleave {}: order {} fails\n{}run it alone: ONCEHOOK_ORDER={}:{} cargo test --test it -- --nocapture interleave::{}",
                self.name,
                ran.word,
                ran.trace,
                self.name,
                ran.word,
                self.test(),
            );
            std::panic::resume_unwind(panic);
        }
        ran
    }

    /// The test that a scenario belongs to.
    fn test(&self) -> &str {
        self.name.split('/').next().unwrap()
    }

    async fn schedule(
        &self,
        points: &mut Vec<Point>,
        word: &str,
        ran: &mut Ran,
        count: &mut Count,
    ) {
        let mut last: Option<usize> = None;
        let mut switches = 0;
        let mut waiting = BTreeSet::new();
        for depth in 0.. {
            let (enabled, labels) = self.enabled(ran, count, &mut waiting).await;
            if let Some(known) = points.get(depth)
                && known.enabled != enabled
            {
                writeln!(
                    ran.trace,
                    "  {enabled:?} can go on, {:?} before",
                    known.enabled
                )
                .unwrap();
                ran.diverged = true;
            }
            if enabled.is_empty() || ran.diverged {
                return;
            }
            if depth == points.len() {
                points.push(self.point(&enabled, last, switches, word.as_bytes().get(depth)));
            }
            let point = &points[depth];
            let chosen = point.choices[point.at];
            if last.is_some_and(|last| last != chosen && enabled.contains(&last)) {
                switches += 1;
            }
            last = Some(chosen);
            ran.word.push(letter(chosen));
            writeln!(ran.trace, "  {} {}", letter(chosen), labels[chosen]).unwrap();
            self.sessions[chosen].release();
        }
    }

    fn point(
        &self,
        enabled: &[usize],
        last: Option<usize>,
        switches: u32,
        asked: Option<&u8>,
    ) -> Point {
        let free = last.is_none_or(|last| !enabled.contains(&last));
        let mut choices: Vec<usize> = enabled.to_vec();
        // Whoever ran last goes on first: this is no switch.
        choices.sort_by_key(|session| Some(*session) != last);
        let cut = !free && self.bound.is_some_and(|bound| switches >= bound) && choices.len() > 1;
        if cut {
            choices.truncate(1);
        }
        if let Some(letter) = asked {
            let session = letter.checked_sub(b'A').map(usize::from);
            let session = session.filter(|session| enabled.contains(session));
            let letter = char::from(*letter);
            choices = vec![session.unwrap_or_else(|| panic!("{letter} cannot go on here"))];
        }
        Point {
            enabled: enabled.to_vec(),
            choices,
            at: 0,
            cut,
        }
    }

    /// Waits until nothing moves; then those that are at a statement, and at which.
    async fn enabled(
        &self,
        ran: &mut Ran,
        count: &mut Count,
        waiting: &mut BTreeSet<usize>,
    ) -> (Vec<usize>, Vec<String>) {
        let end = Instant::now() + STUCK;
        let mut deadlocked = false;
        loop {
            let standings: Vec<Standing> = self.sessions.iter().map(|s| s.standing()).collect();
            let at_work = standings
                .iter()
                .enumerate()
                .any(|(index, standing)| match standing {
                    Standing::Running(_) => !waiting.contains(&index),
                    other => *other == Standing::Between,
                });
            // PostgreSQL is asked only about what does not end by itself.
            if at_work && timeout(LOOK, self.changed.notified()).await.is_ok() {
                continue;
            }
            self.errors(ran, count);
            let blocked = self.blocked(&standings).await;
            let moving = standings
                .iter()
                .enumerate()
                .any(|(index, standing)| match standing {
                    Standing::Running(_) => !blocked.contains(&index),
                    Standing::Between => true,
                    Standing::Held(_) | Standing::Idle => false,
                });
            let idle = standings.iter().all(|s| *s == Standing::Idle);
            let enabled: Vec<usize> = (0..standings.len())
                .filter(|index| matches!(standings[*index], Standing::Held(_)))
                .collect();
            if !moving && (idle || !enabled.is_empty()) {
                for index in &blocked - waiting {
                    count.waits += 1;
                    writeln!(ran.trace, "  {} waits for a lock", letter(index)).unwrap();
                }
                *waiting = blocked;
                let labels = standings.into_iter().map(|standing| match standing {
                    Standing::Held(label) => label,
                    _ => String::new(),
                });
                return (enabled, labels.collect());
            }
            if !moving && !deadlocked {
                deadlocked = true;
                writeln!(ran.trace, "  everybody waits").unwrap();
            }
            assert!(Instant::now() < end, "nothing moves: {standings:?}");
            if !at_work {
                drop(timeout(LOOK, self.changed.notified()).await);
            }
        }
    }

    /// Writes down what PostgreSQL refused since the last look.
    fn errors(&self, ran: &mut Ran, count: &mut Count) {
        for (index, session) in self.sessions.iter().enumerate() {
            for code in session.take_errors() {
                writeln!(ran.trace, "  {} got {code}", letter(index)).unwrap();
                count.deadlocks += u64::from(code == "40P01");
                // A lock time-out: the machine was busy elsewhere, the order is run again.
                ran.diverged |= code == "55P03";
            }
        }
    }

    /// Sessions whose statement waits for a lock that another session holds.
    async fn blocked(&self, standings: &[Standing]) -> BTreeSet<usize> {
        let mut blocked = BTreeSet::new();
        let running: Vec<i32> = standings
            .iter()
            .flat_map(|standing| match standing {
                Standing::Running(pids) => pids.clone(),
                _ => Vec::new(),
            })
            .collect();
        if running.is_empty() || standings.contains(&Standing::Between) {
            return blocked;
        }
        let ours: Vec<i32> = self.sessions.iter().flat_map(|s| s.backends()).collect();
        let rows = self.observer.query(WAITS, &[&running]).await.unwrap();
        let seen: BTreeSet<i32> = rows.iter().map(|row| row.get(0)).collect();
        for (index, standing) in standings.iter().enumerate() {
            let Standing::Running(pids) = standing else {
                continue;
            };
            let gone: Vec<i32> = pids
                .iter()
                .copied()
                .filter(|pid| !seen.contains(pid))
                .collect();
            self.sessions[index].gone(&gone);
            let waits = rows.iter().any(|row| {
                let for_whom: Vec<i32> = row.get(1);
                pids.contains(&row.get(0))
                    && row.get(2)
                    && for_whom.iter().any(|pid| ours.contains(pid))
            });
            if waits {
                blocked.insert(index);
            }
        }
        blocked
    }
}
