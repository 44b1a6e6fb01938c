//! Counts of the last so many seconds.

use std::time::Duration;

/// Parts that a window is kept in; the oldest leaves as a whole.
const PARTS: usize = 10;

/// What has happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Tries that the receiver answered as one that works.
    pub(super) good: u32,
    /// Tries that it did not.
    pub(super) bad: u32,
    /// First tries begun.
    pub(super) first: u32,
    /// Repetitions begun.
    pub(super) again: u32,
}

impl Counts {
    /// Whether at least `minimum` tries ended, and `percent` of them badly.
    pub(super) fn fails(&self, minimum: u32, percent: u8) -> bool {
        let ended = u64::from(self.good) + u64::from(self.bad);
        ended >= u64::from(minimum) && u64::from(self.bad) * 100 >= ended * u64::from(percent)
    }
}

/// A sliding window. Times are since any fixed moment.
#[derive(Debug, Clone)]
pub(super) struct Window {
    part: Duration,
    parts: [Counts; PARTS],
    /// Number of the newest part since the fixed moment.
    newest: u64,
}

impl Window {
    pub(super) fn new(length: Duration) -> Self {
        Self {
            part: (length / 10).max(Duration::from_millis(1)),
            parts: [Counts::default(); PARTS],
            newest: 0,
        }
    }

    /// The counts to add to.
    pub(super) fn at(&mut self, now: Duration) -> &mut Counts {
        let number = self.move_to(now);
        // A remainder of ten is a place.
        let place = usize::try_from(number % PARTS as u64).unwrap_or(0);
        match self.parts.get_mut(place) {
            Some(counts) => counts,
            None => unreachable!("a remainder of the length is an index"),
        }
    }

    /// What is within the window.
    pub(super) fn sum(&mut self, now: Duration) -> Counts {
        self.move_to(now);
        self.parts
            .iter()
            .fold(Counts::default(), |sum, part| Counts {
                good: sum.good.saturating_add(part.good),
                bad: sum.bad.saturating_add(part.bad),
                first: sum.first.saturating_add(part.first),
                again: sum.again.saturating_add(part.again),
            })
    }

    /// Empties the parts that time has passed; returns the number of the newest.
    fn move_to(&mut self, now: Duration) -> u64 {
        let number = u64::try_from(now.as_nanos() / self.part.as_nanos()).unwrap_or(u64::MAX);
        if number > self.newest {
            let passed = number - self.newest;
            for back in 0..passed.min(PARTS as u64) {
                let place = usize::try_from((number - back) % PARTS as u64).unwrap_or(0);
                if let Some(part) = self.parts.get_mut(place) {
                    *part = Counts::default();
                }
            }
            self.newest = number;
        }
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Against a list of what happened: nothing younger than nine tenths of the window is
        // forgotten, nothing older than the window is counted.
        #[test]
        fn a_window_counts_what_is_in_it(steps in prop::collection::vec(0_u64..3_000, 1..80)) {
            let mut window = Window::new(Duration::from_secs(10));
            let mut happened = Vec::new();
            let mut now = 0;
            for step in steps {
                now += step;
                window.at(Duration::from_millis(now)).good += 1;
                happened.push(now);
                let counted = window.sum(Duration::from_millis(now)).good as usize;
                let younger = |than: u64| happened.iter().filter(|at| *at + than > now).count();
                prop_assert!(counted >= younger(9_000) && counted <= younger(10_001), "{counted} at {now}");
            }
        }
    }
}
