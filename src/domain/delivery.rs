//! The delivery state machine: what a verdict makes of a leased delivery.
//!
//! ```text
//!            claim                    done, failed, skip
//!   ready ----------> leased -----------------------------> outcome
//!     ^                 |   retry: later, attempt + 1           ^
//!     |                 |   lost lease: suspect                 |
//!     +-----------------+   budget spent, permanent, poison ----+ (dead)
//!                       |         |
//!                       |         +--> held, where the lane waits for its dead head
//!                       +-- a call was perhaps made: uncertain, see `domain::uncertain`
//! ```

use std::time::Duration;

use super::{Ending, OnDead, OnUncertain, OnUnknown, RetryPolicy};

/// Where a delivery stands when its try has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Recorded failures before this try.
    pub failures: i16,
    /// Whether an earlier lease was lost.
    pub suspect: bool,
    /// Leases lost while it was the only delivery executing in its process.
    pub losses_alone: i16,
    /// Tries that found its time not come.
    pub not_yet: i16,
    /// Time since the first of them.
    pub since_not_yet: Duration,
    /// Whether others wait for its end in a lane.
    pub laned: bool,
    /// Time since its first try began, by the database's clock.
    pub since_first: Duration,
}

/// What a handler's settings say about failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Retry budget.
    pub retry: RetryPolicy,
    /// How long, and how often, an event may find its time not come.
    pub not_yet: RetryPolicy,
    /// Losses alone that make a delivery dead.
    pub crashes: i16,
    /// What its lane does then.
    pub on_dead: OnDead,
    /// What its lane does while the result of a call is not known.
    pub on_uncertain: OnUncertain,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retry: RetryPolicy::default(),
            not_yet: RetryPolicy {
                span: Duration::from_hours(24),
                first: Duration::from_secs(5),
                max: Duration::from_hours(1),
            },
            crashes: 3,
            on_dead: OnDead::default(),
            on_uncertain: OnUncertain::default(),
        }
    }
}

/// How a try ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The work is done; `resource` names what it made, if the handler said so.
    Done {
        /// What the handler made, in its own words.
        resource: Option<String>,
    },
    /// A final business "no".
    Failed {
        /// Why, for people.
        reason: String,
    },
    /// There was nothing to do.
    Skip {
        /// Why, for people.
        reason: String,
    },
    /// Not done; try again.
    Retry {
        /// The handler's wish, honoured if longer than the schedule's delay.
        after: Option<Duration>,
        /// What went wrong, already free of payload and secrets.
        error: String,
    },
    /// Its time has not come: what it is about is not there yet. No failure.
    NotYet {
        /// The handler's wish, honoured if longer than the schedule's delay.
        after: Option<Duration>,
        /// What it waits for, already free of payload and secrets.
        reason: String,
    },
    /// No later try can succeed.
    Permanent {
        /// What went wrong, already free of payload and secrets.
        error: String,
    },
    /// A call was made, or perhaps made, and its result is not known.
    Unknown {
        /// The receiver's wish, honoured as in `Retry` where the call is sent again.
        after: Option<Duration>,
        /// What was seen, already free of payload and secrets.
        error: String,
    },
    /// The lease ended without an answer: a crash, or the connection was lost. A call may have been
    /// made.
    Lost {
        /// Whether it was the only delivery executing in its process.
        alone: bool,
    },
}

impl Verdict {
    /// The payload was dropped by retention: no later try can run it.
    pub(crate) fn payload_expired() -> Self {
        Self::Permanent {
            error: "payload-expired: the event's payload was dropped".to_owned(),
        }
    }

    /// The event's source is not registered: nothing was begun, and a later try may find it.
    pub(crate) fn source_unknown() -> Self {
        Self::Retry {
            after: None,
            error: "the event's source is not known".to_owned(),
        }
    }
}

/// What to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// Outcome, and the delivery row goes.
    Finish {
        /// How it ended.
        ending: Ending,
        /// Why, for people.
        reason: Option<String>,
        /// What it made.
        resource: Option<String>,
    },
    /// Ready again after `delay`, one failure more.
    RetryLater {
        /// Delay from now on the database's clock.
        delay: Duration,
    },
    /// Ready again after `delay`, behind those that wait in its lane.
    Postpone {
        /// Delay from now on the database's clock.
        delay: Duration,
    },
    /// Nothing is sent again until the result is known.
    Uncertain {
        /// Losses alone from now on.
        losses_alone: i16,
    },
    /// Ready at once, to be claimed alone from now on.
    Suspect {
        /// Losses alone from now on.
        losses_alone: i16,
    },
    /// No later try can succeed, and its lane waits: it is a person's now.
    Hold {
        /// Why, for people.
        reason: String,
    },
}

/// Decides the transition. Pure: `jitter` is uniform in `0.0..1.0`.
///
/// `on_unknown` is [`OnUnknown::Retry`] for handlers that make no call: what they did in a
/// transaction that is lost was rolled back.
pub fn next(
    progress: Progress,
    verdict: &Verdict,
    policy: &Policy,
    on_unknown: OnUnknown,
    jitter: f64,
) -> Transition {
    let finish = |ending, reason: Option<&str>| Transition::Finish {
        ending,
        reason: reason.map(str::to_owned),
        resource: None,
    };
    let dead = |reason: String| {
        if progress.laned && policy.on_dead == OnDead::Hold {
            Transition::Hold { reason }
        } else {
            finish(Ending::Dead, Some(&reason))
        }
    };
    match verdict {
        Verdict::Done { resource } => Transition::Finish {
            ending: Ending::Succeeded,
            reason: None,
            resource: resource.clone(),
        },
        Verdict::Failed { reason } => finish(Ending::Failed, Some(reason)),
        Verdict::Skip { reason } => finish(Ending::Skipped, Some(reason)),
        Verdict::Permanent { error } => dead(format!("permanent error: {error}")),
        Verdict::Unknown { .. } if on_unknown != OnUnknown::Retry => Transition::Uncertain {
            losses_alone: progress.losses_alone,
        },
        Verdict::Retry { after, error } | Verdict::Unknown { after, error } => {
            let failures = progress.failures.saturating_add(1);
            match policy
                .retry
                .delay(failures, progress.since_first, *after, jitter)
            {
                Some(delay) => Transition::RetryLater { delay },
                None => dead(format!("retry budget spent: {error}")),
            }
        }
        Verdict::NotYet { after, reason } => {
            let tries = progress.not_yet.saturating_add(1);
            match policy
                .not_yet
                .delay(tries, progress.since_not_yet, *after, jitter)
            {
                Some(delay) => Transition::Postpone { delay },
                None => dead(format!("its time never came: {reason}")),
            }
        }
        Verdict::Lost { alone } => {
            let losses_alone = progress.losses_alone.saturating_add(i16::from(*alone));
            if on_unknown != OnUnknown::Retry {
                // Not even poison is dead while its call may be out.
                Transition::Uncertain { losses_alone }
            } else if losses_alone >= policy.crashes {
                dead(format!(
                    "poison: its process was lost {losses_alone} times while it ran alone"
                ))
            } else {
                Transition::Suspect { losses_alone }
            }
        }
    }
}

impl Transition {
    /// The same for an operation of which an earlier call, or this one, may have been applied although it is
    /// sent again blindly: it never ends as a failure, since its client would take another key. It is a person's.
    #[must_use]
    pub fn or_uncertain(self, losses_alone: i16) -> Self {
        match self {
            Self::Finish {
                ending: Ending::Dead,
                ..
            }
            | Self::Hold { .. } => Self::Uncertain { losses_alone },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fresh() -> Progress {
        Progress {
            failures: 0,
            suspect: false,
            losses_alone: 0,
            not_yet: 0,
            since_not_yet: Duration::ZERO,
            laned: false,
            since_first: Duration::ZERO,
        }
    }

    #[test]
    fn a_loss_among_neighbours_never_counts_towards_the_crash_cap() {
        let mut progress = fresh();
        for _ in 0..100 {
            match next(
                progress,
                &Verdict::Lost { alone: false },
                &Policy::default(),
                OnUnknown::Retry,
                0.5,
            ) {
                Transition::Suspect { losses_alone } => progress.losses_alone = losses_alone,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(progress.losses_alone, 0);
    }

    #[test]
    fn what_may_have_been_applied_does_not_end_as_dead() {
        let dead = |reason: &str| Transition::Finish {
            ending: Ending::Dead,
            reason: Some(reason.to_owned()),
            resource: None,
        };
        let held = Transition::Hold {
            reason: String::new(),
        };
        let uncertain = Transition::Uncertain { losses_alone: 2 };
        assert_eq!(dead("x").or_uncertain(2), uncertain);
        assert_eq!(held.or_uncertain(2), uncertain);
        for other in [
            Transition::Suspect { losses_alone: 1 },
            Transition::RetryLater {
                delay: Duration::ZERO,
            },
            Transition::Finish {
                ending: Ending::Failed,
                reason: None,
                resource: None,
            },
        ] {
            assert_eq!(other.clone().or_uncertain(2), other);
        }
    }

    #[test]
    fn three_losses_alone_are_poison() {
        let mut progress = Progress {
            suspect: true,
            ..fresh()
        };
        for expected in 1..=2 {
            let transition = next(
                progress,
                &Verdict::Lost { alone: true },
                &Policy::default(),
                OnUnknown::Retry,
                0.5,
            );
            assert_eq!(
                transition,
                Transition::Suspect {
                    losses_alone: expected
                }
            );
            progress.losses_alone = expected;
        }
        assert!(matches!(
            next(
                progress,
                &Verdict::Lost { alone: true },
                &Policy::default(),
                OnUnknown::Retry,
                0.5
            ),
            Transition::Finish {
                ending: Ending::Dead,
                ..
            }
        ));
    }

    proptest! {
        // Reference: a run of retries ends dead exactly when time and tries are both spent.
        #[test]
        fn retries_end_dead_exactly_when_time_and_tries_are_spent(
            failures in 0_i16..400, hours in 0_u64..200, jitter in 0.0_f64..1.0
        ) {
            let progress = Progress { failures, since_first: Duration::from_hours(hours), ..fresh() };
            let verdict = Verdict::Retry { after: None, error: "x".into() };
            let dead = matches!(
                next(progress, &verdict, &Policy::default(), OnUnknown::Retry, jitter),
                Transition::Finish { ending: Ending::Dead, .. }
            );
            prop_assert_eq!(dead, hours >= 72 && failures + 1 >= 12);
        }

        // Any life of a delivery, written into the row as `store::delivery` does, ends as the
        // reference says and not before.
        #[test]
        fn a_life_of_tries_ends_as_the_reference_says(
            tries in prop::collection::vec((any_verdict(), 0_u64..20), 1..60),
            hours in 0_u64..100, crashes in 1_i16..6, jitter in 0.0_f64..1.0,
            laned in any::<bool>(), strict in any::<bool>(), on_unknown in any_on_unknown(),
        ) {
            let policy = Policy {
                retry: RetryPolicy { span: Duration::from_hours(hours), ..RetryPolicy::default() },
                not_yet: RetryPolicy {
                    span: Duration::from_hours(hours / 2),
                    ..RetryPolicy::default()
                },
                crashes,
                on_dead: if strict { OnDead::Hold } else { OnDead::Skip },
                on_uncertain: OnUncertain::default(),
            };
            let mut row = Progress { laned, ..fresh() };
            let mut ended = None;
            let mut held = None;
            for (n, (verdict, took)) in tries.iter().enumerate() {
                row.since_first += Duration::from_hours(*took);
                if row.not_yet > 0 {
                    row.since_not_yet += Duration::from_hours(*took);
                }
                match next(row, verdict, &policy, on_unknown, jitter) {
                    Transition::Finish { ending, .. } => {
                        ended = Some((n, End::Outcome(ending)));
                        break;
                    }
                    Transition::RetryLater { .. } => {
                        let sent_again = matches!(verdict, Verdict::Unknown { .. }) && on_unknown == OnUnknown::Retry;
                        prop_assert!(sent_again || matches!(verdict, Verdict::Retry { .. }), "{:?}", verdict);
                        row.failures += 1;
                        row.suspect = false;
                    }
                    Transition::Postpone { .. } => {
                        prop_assert!(matches!(verdict, Verdict::NotYet { .. }), "{:?}", verdict);
                        row.not_yet += 1;
                        row.suspect = false;
                    }
                    Transition::Suspect { losses_alone } => {
                        prop_assert!(matches!(verdict, Verdict::Lost { .. }), "{:?}", verdict);
                        prop_assert_eq!(on_unknown, OnUnknown::Retry);
                        row.suspect = true;
                        row.losses_alone = losses_alone;
                    }
                    Transition::Hold { .. } => {
                        held = Some((n, End::Outcome(Ending::Dead)));
                        break;
                    }
                    Transition::Uncertain { losses_alone } => {
                        let alone = tries[..=n].iter().filter(|(v, _)| matches!(v, Verdict::Lost { alone: true })).count();
                        prop_assert_eq!(usize::try_from(losses_alone).unwrap(), alone);
                        ended = Some((n, End::Uncertain));
                        break;
                    }
                }
            }
            // A strict lane holds exactly what would be dead elsewhere.
            let expected = reference_end(&tries, hours, crashes, on_unknown);
            let dead = expected.is_some_and(|(_, end)| end == End::Outcome(Ending::Dead));
            prop_assert_eq!((ended, held), if laned && strict && dead { (None, expected) } else { (expected, None) });
        }
    }

    /// Where a life of tries stops.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum End {
        Outcome(Ending),
        Uncertain,
    }

    fn any_on_unknown() -> impl Strategy<Value = OnUnknown> {
        prop_oneof![
            Just(OnUnknown::Retry),
            Just(OnUnknown::Probe),
            Just(OnUnknown::Hold)
        ]
    }

    fn any_verdict() -> impl Strategy<Value = Verdict> {
        let text = || "[a-z]{0,4}".prop_map(String::from);
        prop_oneof![
            1 => Just(Verdict::Done { resource: None }),
            1 => text().prop_map(|reason| Verdict::Failed { reason }),
            1 => text().prop_map(|reason| Verdict::Skip { reason }),
            1 => text().prop_map(|error| Verdict::Permanent { error }),
            40 => (prop::option::of(0_u64..9_999), text()).prop_map(|(after, error)| Verdict::Retry {
                after: after.map(Duration::from_secs), error
            }),
            20 => (prop::option::of(0_u64..9_999), text()).prop_map(|(after, reason)| Verdict::NotYet {
                after: after.map(Duration::from_secs), reason
            }),
            2 => text().prop_map(|error| Verdict::Unknown { after: None, error }),
            6 => any::<bool>().prop_map(|alone| Verdict::Lost { alone }),
        ]
    }

    /// Which try ends the delivery, and how: counts over the tries so far, no state.
    fn reference_end(
        tries: &[(Verdict, u64)],
        span: u64,
        crashes: i16,
        on_unknown: OnUnknown,
    ) -> Option<(usize, End)> {
        (0..tries.len()).find_map(|n| {
            let so_far = &tries[..=n];
            let count = |what: fn(&Verdict) -> bool| so_far.iter().filter(|(v, _)| what(v)).count();
            let hours: u64 = so_far.iter().map(|(_, took)| took).sum();
            let ending = match &tries[n].0 {
                Verdict::Unknown { .. } | Verdict::Lost { .. }
                    if on_unknown != OnUnknown::Retry =>
                {
                    return Some((n, End::Uncertain));
                }
                Verdict::Done { .. } => Some(Ending::Succeeded),
                Verdict::Failed { .. } => Some(Ending::Failed),
                Verdict::Skip { .. } => Some(Ending::Skipped),
                Verdict::Permanent { .. } => Some(Ending::Dead),
                Verdict::Retry { .. } | Verdict::Unknown { .. } => {
                    let failed =
                        count(|v| matches!(v, Verdict::Retry { .. } | Verdict::Unknown { .. }));
                    (hours >= span && failed >= 12).then_some(Ending::Dead)
                }
                Verdict::NotYet { .. } => {
                    let asked = count(|v| matches!(v, Verdict::NotYet { .. }));
                    let first = so_far
                        .iter()
                        .position(|(v, _)| matches!(v, Verdict::NotYet { .. }));
                    let since: u64 = so_far
                        .iter()
                        .skip(first.unwrap_or(n) + 1)
                        .map(|(_, took)| took)
                        .sum();
                    (since >= span / 2 && asked >= 12).then_some(Ending::Dead)
                }
                Verdict::Lost { .. } => {
                    let alone = count(|v| matches!(v, Verdict::Lost { alone: true }));
                    (alone >= usize::try_from(crashes).unwrap()).then_some(Ending::Dead)
                }
            };
            ending.map(|ending| (n, End::Outcome(ending)))
        })
    }
}
