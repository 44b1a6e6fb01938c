//! When to try again.

use std::time::Duration;

/// Retry budget in time: exponential delays with full jitter between `first` and `max`, for
/// `span` since the first try and for at least [`RetryPolicy::TRIES_MIN`] tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How long after the first try a failure is still retried.
    pub span: Duration,
    /// Upper bound of the first delay.
    pub first: Duration,
    /// Upper bound of every delay.
    pub max: Duration,
}

impl RetryPolicy {
    /// Tries granted even when the time budget is already spent, so that a long outage of the
    /// receiver or of oncehook itself does not eat the budget.
    pub const TRIES_MIN: i16 = 12;
    /// Longest `Retry-After` that is honoured.
    pub const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

    /// The delay before the next try, or `None` when the budget is spent.
    ///
    /// `failures` counts the failed tries, this one included (1 or more); `since_first` is the
    /// time since the first try began; `asked` is the handler's `Retry-After`, which wins if it
    /// is longer; `jitter` is uniform in `0.0..1.0`.
    pub fn delay(
        &self,
        failures: i16,
        since_first: Duration,
        asked: Option<Duration>,
        jitter: f64,
    ) -> Option<Duration> {
        if since_first >= self.span && failures >= Self::TRIES_MIN {
            return None;
        }
        let doublings = u32::try_from(failures.max(1) - 1).unwrap_or(0).min(40);
        let bound = self
            .first
            .saturating_mul(1_u32.checked_shl(doublings.min(31)).unwrap_or(u32::MAX))
            .min(self.max);
        let own = bound.mul_f64(jitter.clamp(0.0, 1.0));
        Some(own.max(asked.unwrap_or_default().min(Self::RETRY_AFTER_MAX)))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            span: Duration::from_hours(72),
            first: Duration::from_secs(5),
            max: Duration::from_hours(6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn f49_a_thousand_failures_are_spread_over_the_whole_delay() {
        let policy = RetryPolicy::default();
        let mut rng: u64 = 7;
        let mut buckets = [0_u32; 10];
        for _ in 0..1_000 {
            rng = rng
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let jitter = f64::from(u32::try_from(rng >> 32).unwrap()) / f64::from(u32::MAX);
            let delay = policy.delay(4, Duration::ZERO, None, jitter).unwrap();
            assert!(delay <= Duration::from_secs(40));
            let tenth = usize::try_from(delay.as_secs() / 4).unwrap();
            buckets[tenth.min(9)] += 1;
        }
        assert!(buckets.iter().all(|count| *count <= 150), "{buckets:?}");
    }

    #[test]
    fn the_budget_ends_by_time_but_never_before_twelve_tries() {
        let policy = RetryPolicy::default();
        let late = Duration::from_hours(100);
        assert!(policy.delay(11, late, None, 0.5).is_some());
        assert!(policy.delay(12, late, None, 0.5).is_none());
        assert!(
            policy
                .delay(500, Duration::from_hours(71), None, 0.5)
                .is_some()
        );
    }

    proptest! {
        #[test]
        fn delays_never_pass_the_cap(failures in 1_i16..i16::MAX, jitter in 0.0_f64..1.0, asked in 0_u64..100_000) {
            let policy = RetryPolicy::default();
            let asked = Duration::from_secs(asked);
            let delay = policy.delay(failures, Duration::ZERO, Some(asked), jitter).unwrap();
            prop_assert!(delay <= policy.max.max(RetryPolicy::RETRY_AFTER_MAX));
            prop_assert!(delay >= asked.min(RetryPolicy::RETRY_AFTER_MAX));
        }
    }
}
