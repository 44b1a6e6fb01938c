//! A day without the receiver, in a second: the real state machine, breaker and retry budget, with
//! a clock that the simulation moves.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::domain::delivery::next;
use crate::domain::{Policy, Progress, Transition, Verdict};

use super::breaker::{Breaker, BreakerPolicy, BreakerState, Room};
use super::budget::{RetryBudget, WINDOW};

const NODES: usize = 2;
const SLOTS: u16 = 16;
const TICK: Duration = Duration::from_millis(200);
/// A delivery comes this often.
const EVERY: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Debug, Default)]
struct Seen {
    came: usize,
    done: usize,
    dead: usize,
    /// Tries begun while the receiver was away, and the most of one delivery.
    tries_away: usize,
    most_of_one: i16,
    openings: usize,
    deferred: usize,
    /// Tries begun after it came back and before the first of them had ended well.
    before_first_good: usize,
    /// From its return until nothing waited any more.
    caught_up_after: Duration,
}

struct Delivery {
    progress: Progress,
    first_try: Option<Duration>,
}

struct Node {
    breaker: Option<Breaker>,
    budget: RetryBudget,
    /// End, delivery, epoch.
    out: VecDeque<(Duration, usize, u32)>,
}

/// A repeatable draw in `0.0..1.0`.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 32).unwrap()) / (f64::from(u32::MAX) + 1.0)
    }
}

/// The receiver is away from ten minutes on, for so long.
fn outage(away: Duration, breaker: Option<BreakerPolicy>) -> Seen {
    let begins = Duration::from_mins(10);
    let ends = begins + away;
    let (mut seen, mut draw) = (Seen::default(), Draw(7));
    let mut nodes: Vec<Node> = (0..NODES)
        .map(|_| Node {
            breaker: breaker.map(|policy| Breaker::new(policy, SLOTS)),
            budget: RetryBudget::new(20),
            out: VecDeque::new(),
        })
        .collect();
    let mut deliveries: Vec<Delivery> = Vec::new();
    let mut ready: BTreeSet<(Duration, usize)> = BTreeSet::new();
    let mut now = Duration::ZERO;
    let mut works_again = false;
    loop {
        if now <= ends && now.as_millis().is_multiple_of(EVERY.as_millis()) {
            ready.insert((now, deliveries.len()));
            deliveries.push(Delivery {
                progress: Progress {
                    not_yet: 0,
                    since_not_yet: Duration::ZERO,
                    laned: false,
                    failures: 0,
                    suspect: false,
                    losses_alone: 0,
                    since_first: Duration::ZERO,
                },
                first_try: None,
            });
        }
        let is_away = now >= begins && now < ends;
        for node in &mut nodes {
            while node.out.front().is_some_and(|(end, ..)| *end <= now) {
                let (_, id, epoch) = node.out.pop_front().unwrap();
                node.budget.ended(!is_away, now);
                if let Some(breaker) = &mut node.breaker {
                    let state = breaker.ended(epoch, !is_away, now, draw.next());
                    seen.openings += usize::from(state == Some(BreakerState::Open));
                }
                let delivery = &mut deliveries[id];
                if !is_away {
                    works_again |= now > ends;
                    seen.done += 1;
                    continue;
                }
                delivery.progress.since_first = now.saturating_sub(delivery.first_try.unwrap());
                let verdict = Verdict::Retry {
                    after: None,
                    error: "not connected".into(),
                };
                match next(delivery.progress, &verdict, &Policy::default(), draw.next()) {
                    Transition::RetryLater { delay } => {
                        delivery.progress.failures += 1;
                        seen.most_of_one = seen.most_of_one.max(delivery.progress.failures);
                        ready.insert((now + delay, id));
                    }
                    Transition::Finish { .. } => seen.dead += 1,
                    other => unreachable!("no lease is lost, nothing is early: {other:?}"),
                }
            }
            let free = SLOTS - u16::try_from(node.out.len()).unwrap();
            let room = match node.breaker.as_mut().map_or(Room::Any, |b| b.room(now)) {
                Room::Any => free,
                Room::UpTo(room) => room.min(free),
                Room::Not(_) | Room::Full => 0,
            };
            for _ in 0..room {
                let Some((due, id)) = ready.first().copied().filter(|(due, _)| *due <= now) else {
                    break;
                };
                ready.remove(&(due, id));
                let delivery = &mut deliveries[id];
                if !node.budget.begin(delivery.progress.failures > 0, now) {
                    seen.deferred += 1;
                    ready.insert((now + WINDOW.mul_f64(0.25 + 0.75 * draw.next()), id));
                    continue;
                }
                delivery.first_try.get_or_insert(now);
                let epoch = node.breaker.as_mut().map_or(0, Breaker::begun);
                node.out.push_back((now + TICK, id, epoch));
                seen.tries_away += usize::from(is_away);
                seen.before_first_good += usize::from(now >= ends && !works_again);
            }
        }
        if now > ends && seen.done + seen.dead == deliveries.len() {
            seen.came = deliveries.len();
            seen.caught_up_after = now.saturating_sub(ends);
            return seen;
        }
        assert!(now < ends + Duration::from_hours(24), "{seen:?}");
        now += TICK;
    }
}

#[test]
fn a_day_without_the_receiver_kills_nothing_and_ends_without_a_storm() {
    let day = Duration::from_hours(24);
    let seen = outage(day, Some(BreakerPolicy::default()));
    eprintln!("a day: {seen:?}");
    assert_eq!((seen.dead, seen.done), (0, seen.came));
    assert!(seen.came > 86_000);
    // It is asked for once in half a minute to a minute and node, by few tries of few deliveries.
    let asked = usize::try_from(day.as_secs()).unwrap() / 30 * NODES * 3;
    assert!(seen.tries_away < asked, "{seen:?}");
    assert!(seen.openings > 1_000, "{seen:?}");
    // Before it has shown that it works, it gets the probes, and then twice as many step by step.
    assert!(
        (1..=3 * NODES).contains(&seen.before_first_good),
        "{seen:?}"
    );
    // In the end it goes as fast as the slots allow: 160 a second, all that came in a day.
    assert!(seen.caught_up_after < Duration::from_mins(25), "{seen:?}");
}

#[test]
fn an_hour_without_breaker_costs_many_times_the_tries() {
    let hour = Duration::from_hours(1);
    let with = outage(hour, Some(BreakerPolicy::default()));
    let without = outage(hour, None);
    eprintln!("an hour with a breaker: {with:?}\nwithout: {without:?}");
    assert_eq!(with.dead + without.dead, 0);
    assert!(without.tries_away > 10 * with.tries_away);
    // Without one the retry budget is what is left: one repetition a second and node.
    assert!(without.deferred > 1_000, "{without:?}");
    assert!(
        without.tries_away < without.came + 2 * 60 * 66,
        "{without:?}"
    );
}
