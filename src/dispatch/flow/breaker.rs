//! A receiver that does not work is left alone for a while.
//!
//! ```text
//!            share of bad tries              wait is over
//!   closed ---------------------> open -------------------> half-open
//!     ^                             ^    a bad first probe      |
//!     |                             +---------------------------+
//!     +------ 3 good, then 6, 12, .. up to the handler's slots -+
//! ```
//!
//! Half-open lets a few tries through; when they end well, twice as many, and so on: a receiver
//! that has just come back is not met by everything that waited. Pure: time and randomness are
//! arguments.

use std::time::Duration;

use super::window::Window;

/// When a handler's breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Opens when this share of the tries ended badly, in percent (1 to 100).
    pub failures: u8,
    /// But not before so many have ended within the window.
    pub minimum: u32,
    /// What is looked back upon.
    pub window: Duration,
    /// How long it stays open the first time; each time after that twice as long.
    pub first: Duration,
    /// But no longer than this.
    pub max: Duration,
    /// Tries that half-open lets through at first (1 to 3).
    pub probes: u16,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures: 50,
            minimum: 20,
            window: Duration::from_secs(30),
            first: Duration::from_secs(5),
            max: Duration::from_mins(1),
            probes: 3,
        }
    }
}

/// Where a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything may begin.
    Closed,
    /// A few may begin, to see whether it works again.
    HalfOpen,
    /// Nothing begins.
    Open,
}

impl BreakerState {
    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// How many tries may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Any,
    /// No more than so many, one or more.
    UpTo(u16),
    /// None until then.
    Not(Duration),
    /// None until something that runs has ended.
    Full,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed,
    Open {
        until: Duration,
    },
    /// A stage of so many tries: begun, and how they ended.
    HalfOpen {
        limit: u16,
        begun: u16,
        good: u16,
        bad: u16,
    },
}

/// A breaker of one handler on one node.
#[derive(Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    /// Tries of a handler at once: from there on it is closed.
    slots: u16,
    state: State,
    /// Grows with every change of the state or stage; what began before one tells nothing about it.
    epoch: u32,
    /// Times it has opened since it was closed.
    openings: u32,
    window: Window,
}

impl Breaker {
    pub(crate) fn new(policy: BreakerPolicy, slots: u16) -> Self {
        Self {
            policy,
            slots,
            state: State::Closed,
            epoch: 0,
            openings: 0,
            window: Window::new(policy.window),
        }
    }

    /// Whether it was made for these settings.
    pub(crate) fn is_for(&self, policy: BreakerPolicy, slots: u16) -> bool {
        self.policy == policy && self.slots == slots
    }

    pub(crate) fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// How many may begin now. An open one whose time is over is half-open from here on.
    pub(crate) fn room(&mut self, now: Duration) -> Room {
        match self.state {
            State::Closed => Room::Any,
            State::Open { until } if now < until => Room::Not(until),
            State::Open { .. } => {
                self.half_open(self.policy.probes);
                Room::UpTo(self.policy.probes)
            }
            State::HalfOpen { limit, begun, .. } if begun < limit => Room::UpTo(limit - begun),
            State::HalfOpen { .. } => Room::Full,
        }
    }

    /// A try begins; it says how it ended under this number.
    pub(crate) fn begun(&mut self) -> u32 {
        if let State::HalfOpen { begun, .. } = &mut self.state {
            *begun = begun.saturating_add(1);
        }
        self.epoch
    }

    /// A try ended without telling anything of the receiver.
    pub(crate) fn unknown(&mut self, epoch: u32) {
        if epoch == self.epoch
            && let State::HalfOpen { begun, .. } = &mut self.state
        {
            *begun = begun.saturating_sub(1);
        }
    }

    /// A try ended. Tells the new state if that changes it.
    pub(crate) fn ended(
        &mut self,
        epoch: u32,
        good: bool,
        now: Duration,
        jitter: f64,
    ) -> Option<BreakerState> {
        // What began under another state says how things were then.
        if epoch != self.epoch {
            return None;
        }
        match self.state {
            State::Open { .. } => None,
            State::Closed => {
                let counts = self.window.at(now);
                if good {
                    counts.good += 1;
                    return None;
                }
                counts.bad += 1;
                let fails = self
                    .window
                    .sum(now)
                    .fails(self.policy.minimum, self.policy.failures);
                fails.then(|| self.open(now, jitter))
            }
            State::HalfOpen {
                limit,
                begun,
                good: so_far,
                bad,
            } => {
                let (so_far, bad) = (so_far + u16::from(good), bad + u16::from(!good));
                self.state = State::HalfOpen {
                    limit,
                    begun,
                    good: so_far,
                    bad,
                };
                let first_stage = limit <= self.policy.probes;
                let share =
                    u32::from(bad) * 100 >= u32::from(limit) * u32::from(self.policy.failures);
                if bad > 0 && (first_stage || share) {
                    return Some(self.open(now, jitter));
                }
                if so_far + bad < limit {
                    return None;
                }
                if limit.saturating_mul(2) > self.slots {
                    self.state = State::Closed;
                    self.epoch = self.epoch.wrapping_add(1);
                    self.openings = 0;
                    self.window = Window::new(self.policy.window);
                    return Some(BreakerState::Closed);
                }
                self.half_open(limit.saturating_mul(2));
                None
            }
        }
    }

    fn half_open(&mut self, limit: u16) {
        self.epoch = self.epoch.wrapping_add(1);
        self.state = State::HalfOpen {
            limit,
            begun: 0,
            good: 0,
            bad: 0,
        };
    }

    /// `jitter` is uniform in `0.0..1.0`, so that nodes do not probe in step.
    fn open(&mut self, now: Duration, jitter: f64) -> BreakerState {
        let doubled = self.policy.first.saturating_mul(1 << self.openings.min(16));
        let wait = doubled
            .min(self.policy.max)
            .mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0));
        self.state = State::Open { until: now + wait };
        self.epoch = self.epoch.wrapping_add(1);
        self.openings = self.openings.saturating_add(1);
        BreakerState::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::new(BreakerPolicy::default(), 16);
        for n in 0..20 {
            let epoch = breaker.begun();
            let change = breaker.ended(epoch, false, seconds(1), 1.0);
            assert_eq!(change, (n == 19).then_some(BreakerState::Open), "{n}");
        }
        breaker
    }

    #[test]
    fn it_opens_at_the_share_and_not_before_the_minimum() {
        let mut breaker = opened();
        assert_eq!(breaker.room(seconds(5)), Room::Not(seconds(6)));
        // One bad among many good ones is nothing.
        let mut breaker = Breaker::new(BreakerPolicy::default(), 16);
        for n in 0..1_000 {
            let epoch = breaker.begun();
            assert_eq!(breaker.ended(epoch, n % 3 != 0, seconds(1), 1.0), None);
        }
        assert_eq!(breaker.room(seconds(1)), Room::Any);
    }

    #[test]
    fn bad_tries_of_long_ago_do_not_count() {
        let mut breaker = Breaker::new(BreakerPolicy::default(), 16);
        for n in 0..100 {
            // Never 20 within 30 s.
            let epoch = breaker.begun();
            assert_eq!(breaker.ended(epoch, false, seconds(2 * n), 1.0), None);
        }
    }

    #[test]
    fn probes_close_it_step_by_step() {
        let mut breaker = opened();
        let mut now = seconds(6);
        let mut stages = Vec::new();
        while let Room::UpTo(room) = breaker.room(now) {
            stages.push(room);
            let begun: Vec<u32> = (0..room).map(|_| breaker.begun()).collect();
            assert_eq!(breaker.room(now), Room::Full);
            now += seconds(1);
            for epoch in begun {
                breaker.ended(epoch, true, now, 0.5);
            }
        }
        assert_eq!(stages, [3, 6, 12]);
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(breaker.room(now), Room::Any);
    }

    #[test]
    fn a_bad_probe_opens_it_again_for_twice_as_long() {
        let mut breaker = opened();
        let mut now = seconds(6);
        let mut waits = Vec::new();
        for _ in 0..6 {
            assert_eq!(breaker.room(now), Room::UpTo(3));
            let epoch = breaker.begun();
            assert_eq!(
                breaker.ended(epoch, false, now, 1.0),
                Some(BreakerState::Open)
            );
            let Room::Not(until) = breaker.room(now) else {
                panic!("it is open");
            };
            waits.push(until.saturating_sub(now).as_secs());
            now = until;
        }
        assert_eq!(waits, [10, 20, 40, 60, 60, 60]);
    }

    #[test]
    fn what_began_before_it_opened_changes_nothing() {
        let mut breaker = Breaker::new(BreakerPolicy::default(), 64);
        let early: Vec<u32> = (0..60).map(|_| breaker.begun()).collect();
        for epoch in &early[..20] {
            breaker.ended(*epoch, false, seconds(1), 1.0);
        }
        assert_eq!(breaker.room(seconds(6)), Room::UpTo(3));
        for epoch in &early[20..] {
            assert_eq!(breaker.ended(*epoch, false, seconds(7), 1.0), None);
        }
        assert_eq!(breaker.room(seconds(7)), Room::UpTo(3));
    }

    #[test]
    fn a_probe_that_was_never_sent_gives_its_place_back() {
        let mut breaker = opened();
        assert_eq!(breaker.room(seconds(6)), Room::UpTo(3));
        let epochs: Vec<u32> = (0..3).map(|_| breaker.begun()).collect();
        assert_eq!(breaker.room(seconds(6)), Room::Full);
        breaker.unknown(epochs[0]);
        assert_eq!(breaker.room(seconds(6)), Room::UpTo(1));
    }

    proptest! {
        // Whatever happens: it never lets more through than its stage allows, and if everything
        // that began ends, it does not stand still for ever.
        #[test]
        fn it_never_lets_too_many_through_and_never_sticks(
            steps in prop::collection::vec((0_u64..20_000, 0_u16..40, prop::option::of(any::<bool>()), any::<bool>()), 1..200)
        ) {
            let policy = BreakerPolicy::default();
            let mut breaker = Breaker::new(policy, 16);
            let mut now = Duration::ZERO;
            let mut out: Vec<u32> = Vec::new();
            for (later, wanted, ends, all) in steps {
                now += Duration::from_millis(later);
                let room = breaker.room(now);
                let begin = match room {
                    Room::Any => wanted,
                    Room::UpTo(room) => {
                        prop_assert!((1..=16).contains(&room));
                        wanted.min(room)
                    }
                    Room::Not(until) => {
                        prop_assert!(until > now && until <= now + policy.max);
                        0
                    }
                    Room::Full => {
                        prop_assert!(!out.is_empty(), "nothing is out and nothing may begin");
                        0
                    }
                };
                out.extend((0..begin).map(|_| breaker.begun()));
                let end = if all { out.len() } else { out.len() / 2 };
                for epoch in out.drain(..end) {
                    match ends {
                        Some(good) => { breaker.ended(epoch, good, now, 0.5); }
                        None => breaker.unknown(epoch),
                    }
                }
            }
        }
    }
}
