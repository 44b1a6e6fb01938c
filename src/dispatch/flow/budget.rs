//! Repetitions of a handler that fails may be only a share of its first tries.
//!
//! A receiver that fails a third of its calls gets each of these again: without a bound, the
//! repetitions are what keeps it down. Pure: time is an argument.

use std::time::Duration;

use super::window::Window;

/// What is looked back upon.
pub(crate) const WINDOW: Duration = Duration::from_mins(1);
/// Repetitions within it that are always allowed: one a second.
const ALWAYS: u32 = 60;
/// A handler is failing when so many tries have ended within the window,
const MINIMUM: u32 = 20;
/// and this share of them badly, in percent.
const FAILING: u8 = 10;

/// Repetitions of one handler on one node.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    /// Repetitions per hundred first tries.
    percent: u16,
    window: Window,
}

impl RetryBudget {
    pub(crate) fn new(percent: u16) -> Self {
        Self {
            percent,
            window: Window::new(WINDOW),
        }
    }

    /// Whether it was made for this share.
    pub(crate) fn is_for(&self, percent: u16) -> bool {
        self.percent == percent
    }

    /// A try is to begin, for the first time or again; `false` when it has to wait.
    pub(crate) fn begin(&mut self, again: bool, now: Duration) -> bool {
        if !again {
            self.window.at(now).first += 1;
            return true;
        }
        let counts = self.window.sum(now);
        let share = u64::from(counts.first) * u64::from(self.percent) / 100;
        let allowed = !counts.fails(MINIMUM, FAILING)
            || u64::from(counts.again) < share.max(u64::from(ALWAYS));
        if allowed {
            self.window.at(now).again += 1;
        }
        allowed
    }

    /// A try that was to begin waits for another of its handler: it was none.
    pub(crate) fn put_off(&mut self, again: bool, now: Duration) {
        let counts = self.window.at(now);
        let counted = if again {
            &mut counts.again
        } else {
            &mut counts.first
        };
        // It may have been counted in the part before: then the window forgets it a little later.
        *counted = counted.saturating_sub(1);
    }

    /// A try ended.
    pub(crate) fn ended(&mut self, good: bool, now: Duration) {
        let counts = self.window.at(now);
        if good {
            counts.good += 1;
        } else {
            counts.bad += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_handler_that_works_repeats_as_it_likes() {
        let mut budget = RetryBudget::new(20);
        for n in 0..10_000_u64 {
            let now = Duration::from_millis(n);
            assert!(budget.begin(n % 2 == 0, now));
            // Nineteen in twenty are good.
            budget.ended(n % 20 != 0, now);
        }
    }

    #[test]
    fn what_is_put_off_was_no_repetition() {
        let mut budget = RetryBudget::new(20);
        let now = Duration::from_secs(1);
        for _ in 0..MINIMUM {
            assert!(budget.begin(false, now));
            budget.ended(false, now);
        }
        for _ in 0..10 * ALWAYS {
            assert!(budget.begin(true, now));
            budget.put_off(true, now);
        }
        let made = (0..2 * ALWAYS).filter(|_| budget.begin(true, now)).count();
        assert_eq!(made, 60);
    }

    #[test]
    fn a_failing_one_repeats_a_fifth_of_its_first_tries() {
        let mut budget = RetryBudget::new(20);
        let (mut first, mut again) = (0_u32, 0_u32);
        for n in 0..60_000_u64 {
            let now = Duration::from_millis(n);
            let repeats = n % 2 == 0;
            if budget.begin(repeats, now) {
                if repeats {
                    again += 1;
                } else {
                    first += 1;
                }
                budget.ended(false, now);
            }
        }
        assert_eq!(first, 30_000);
        assert!((5_900..=6_020).contains(&again), "{again}");
    }

    proptest! {
        // While it fails, no minute holds more repetitions than a fifth of the first tries of the
        // minute before, or one a second.
        #[test]
        fn no_minute_of_failures_holds_more_than_the_share(
            steps in prop::collection::vec((0_u64..500, any::<bool>()), 100..1_500)
        ) {
            let mut budget = RetryBudget::new(20);
            for n in 0..MINIMUM {
                budget.ended(false, Duration::from_millis(u64::from(n)));
            }
            let mut now = Duration::from_millis(100);
            let mut begun: Vec<(Duration, bool)> = Vec::new();
            for (later, again) in steps {
                now += Duration::from_millis(later);
                let bad = budget.window.sum(now).fails(MINIMUM, FAILING);
                if budget.begin(again, now) {
                    begun.push((now, again));
                    let since = now.saturating_sub(WINDOW);
                    let count = |of: bool| begun.iter().filter(|(at, again)| *at >= since && *again == of).count();
                    // The window's oldest tenth may have left already.
                    let soon = now.saturating_sub(WINDOW * 9 / 10);
                    let again_soon = begun.iter().filter(|(at, again)| *at >= soon && *again).count();
                    prop_assert!(!bad || !again || again_soon <= (count(false) / 5).max(ALWAYS as usize));
                }
                budget.ended(false, now);
            }
        }
    }
}
