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
    /// How long an event is looked at again whose call is not known, or under way.
    pub const LATE: Self = Self {
        span: Duration::from_mins(10),
        first: Duration::from_secs(2),
        max: Duration::from_mins(1),
    };
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
        let doublings = u32::try_from(failures.max(1) - 1).unwrap_or(0).min(31);
        let bound = self.first.saturating_mul(1 << doublings).min(self.max);
        // `mul_f64` would panic where rounding leads beyond the longest duration.
        let own = Duration::try_from_secs_f64(bound.as_secs_f64() * jitter.clamp(0.0, 1.0))
            .map_or(bound, |own| own.min(bound));
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

    fn any_duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            (0_u64..1_000_000_000_000).prop_map(Duration::from_nanos),
            (0_u64..1_000_000).prop_map(Duration::from_secs),
            any::<u64>().prop_map(Duration::from_secs),
            Just(Duration::MAX),
        ]
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

        // Any policy, also one that no configuration allows: counted in nanoseconds, step by step.
        #[test]
        fn any_policy_keeps_the_schedule_of_the_reference(
            span in any_duration(), first in any_duration(), max in any_duration(),
            failures in i16::MIN..i16::MAX, since in any_duration(),
            asked in prop::option::of(any_duration()), jitter in -0.5_f64..1.5,
        ) {
            let policy = RetryPolicy { span, first, max };
            let given = policy.delay(failures, since, asked, jitter);
            prop_assert_eq!(given.is_none(), since >= span && failures >= 12);
            if let Some(delay) = given {
                let mut bound = first.as_nanos();
                for _ in 1..failures.clamp(1, 32) {
                    bound *= 2;
                }
                bound = bound.min(max.as_nanos());
                let asked = asked.unwrap_or_default().min(Duration::from_hours(1)).as_nanos();
                prop_assert!(delay.as_nanos() >= asked);
                prop_assert!(delay.as_nanos() <= bound.max(asked));
                // Full jitter: from nothing to the whole bound, and never less for more of it.
                let at = |jitter| policy.delay(failures, since, None, jitter).unwrap();
                prop_assert_eq!(at(0.0), Duration::ZERO);
                prop_assert!(at(jitter) <= at(jitter + 0.1));
                prop_assert!(bound - at(1.0).as_nanos() <= bound / 1_000_000);
                // The bound never falls from one failure to the next, and ends at the cap.
                if failures < i16::MAX {
                    let later = policy.delay(failures + 1, Duration::ZERO, None, 1.0);
                    prop_assert!(later.is_none_or(|later| later >= at(1.0)));
                }
            }
        }
    }
}
