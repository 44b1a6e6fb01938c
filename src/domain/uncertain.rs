//! A call whose result is not known: what may end its delivery, and when it is asked about.
//!
//! ```text
//!   uncertain --late answer; probe: applied, refused; a person--> outcome
//!   uncertain --not applied, and no later call can be, in a strict lane--> held
//!   uncertain --probe: absent, asked behind in_flight_until; a person: retry--> ready, same effect key
//!   uncertain --cannot tell--> uncertain: the next probe, then a person
//! ```
//!
//! Age alone never ends one.

use std::time::Duration;

use super::operation::{Response, Told};
use super::{Ending, OnDead, Policy, Progress};

/// What becomes of a delivery whose call has no definite answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// It is sent again: the receiver honours the effect key.
    Retry,
    /// It becomes uncertain, and the receiver is asked.
    Probe,
    /// It becomes uncertain, and a person decides.
    Hold,
}

impl OnUnknown {
    /// The word of the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Probe => "probe",
            Self::Hold => "hold",
        }
    }
}

/// When a receiver is asked about a call, counted from when its result became unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSchedule(Vec<Duration>);

impl ProbeSchedule {
    /// Probes at these times; `None` unless there is one and each is later than the one before.
    pub fn new(at: Vec<Duration>) -> Option<Self> {
        let rises = at.windows(2).all(|pair| pair.first() < pair.last());
        let fits = at.len() <= Self::PROBES_MAX && at.first().is_some_and(|first| !first.is_zero());
        (rises && fits).then_some(Self(at))
    }

    /// Most probes of a schedule.
    pub const PROBES_MAX: usize = 20;

    /// Before the first probe; also the least time between two.
    pub fn first(&self) -> Duration {
        self.0.first().copied().unwrap_or_default()
    }

    /// The times.
    pub fn times(&self) -> &[Duration] {
        &self.0
    }

    /// When to ask after so many probes; `None` when the schedule is spent.
    fn after(&self, probes: i16) -> Option<Duration> {
        usize::try_from(probes)
            .ok()
            .and_then(|n| self.0.get(n))
            .copied()
    }
}

impl Default for ProbeSchedule {
    fn default() -> Self {
        Self([5, 30, 120, 600, 3_600].map(Duration::from_secs).to_vec())
    }
}

/// What a receiver says of an effect key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probed {
    /// The effect is there.
    Applied {
        /// What was made, in the receiver's words.
        resource: Option<String>,
    },
    /// The call was processed and ended in a final business "no".
    Refused {
        /// Why, for people.
        reason: String,
    },
    /// The receiver never got the call, or rolled it back. Sent again if this was asked when the call
    /// could no longer be under way.
    Absent,
    /// It cannot tell.
    Unknown {
        /// Why, for people.
        why: String,
    },
    /// Another of these, and what the client of an operation is told beside it; see [`Probed::with_response`].
    Telling(Box<Probed>, Told),
}

impl Probed {
    /// With the response that the client of an operation gets: the bytes that the call itself was, or would
    /// have been, answered with. It is stored with `Applied` and `Refused`.
    #[must_use]
    pub fn with_response(self, response: Response) -> Self {
        let (found, told) = self.split();
        let response = Some(response);
        Self::Telling(Box::new(found), Told { response, ..told })
    }

    /// With the id that the outside world gave it: of an operation, part of its record.
    #[must_use]
    pub fn with_external_id(self, id: impl Into<String>) -> Self {
        let (found, told) = self.split();
        let external_id = Some(id.into());
        Self::Telling(
            Box::new(found),
            Told {
                external_id,
                ..told
            },
        )
    }

    /// What was found itself, and what is told beside it.
    pub(crate) fn split(mut self) -> (Self, Told) {
        let mut told = Told::default();
        while let Self::Telling(found, beside) = self {
            told = told.or(beside);
            self = *found;
        }
        (self, told)
    }

    /// The word used in metrics and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Applied { .. } => "applied",
            Self::Refused { .. } => "refused",
            Self::Absent => "absent",
            Self::Unknown { .. } => "unknown",
            Self::Telling(found, _) => found.as_str(),
        }
    }
}

/// Where an uncertain delivery stands when a probe was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Failures and losses, the call in question included.
    pub progress: Progress,
    /// Probes asked, this one included.
    pub probes: i16,
    /// The call could no longer be under way when this probe was sent.
    pub landed: bool,
}

/// What to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Outcome, and the delivery row goes.
    Finish {
        /// How it ended.
        ending: Ending,
        /// Why, for people.
        reason: Option<String>,
        /// What it made.
        resource: Option<String>,
    },
    /// No later call can be applied, and its lane waits: it is a person's now.
    Hold {
        /// Why, for people.
        reason: String,
    },
    /// Ready at once, under the same effect key.
    Release,
    /// Asked again so long after it became uncertain.
    ProbeAt(Duration),
    /// Asked again when the call can no longer be under way.
    ProbeWhenLanded,
    /// Nobody is asked any more; a person decides.
    Person,
}

/// What becomes of one that was not applied and never will be.
pub fn dead(progress: Progress, policy: &Policy, reason: String) -> Step {
    if progress.laned && policy.on_dead == OnDead::Hold {
        return Step::Hold { reason };
    }
    Step::Finish {
        ending: Ending::Dead,
        reason: Some(reason),
        resource: None,
    }
}

/// Decides what an answer to a probe makes of an uncertain delivery. Pure.
pub fn probed(
    standing: Standing,
    found: &Probed,
    policy: &Policy,
    schedule: &ProbeSchedule,
) -> Step {
    let finish = |ending, reason, resource| Step::Finish {
        ending,
        reason,
        resource,
    };
    match found {
        Probed::Applied { resource } => finish(Ending::Succeeded, None, resource.clone()),
        Probed::Refused { reason } => finish(Ending::Failed, Some(reason.clone()), None),
        Probed::Absent if standing.landed => {
            let progress = standing.progress;
            let retried =
                policy
                    .retry
                    .delay(progress.failures.max(1), progress.since_first, None, 0.0);
            // Only now: as long as a call may be out, nothing is dead.
            if progress.losses_alone >= policy.crashes {
                let reason = format!(
                    "poison: its process was lost {} times while it ran alone",
                    progress.losses_alone
                );
                dead(progress, policy, reason)
            } else if retried.is_none() {
                let reason = "retry budget spent: the last call was not applied".to_owned();
                dead(progress, policy, reason)
            } else {
                Step::Release
            }
        }
        Probed::Absent => schedule
            .after(standing.probes)
            .map_or(Step::ProbeWhenLanded, Step::ProbeAt),
        Probed::Unknown { .. } => schedule
            .after(standing.probes)
            .map_or(Step::Person, Step::ProbeAt),
        Probed::Telling(found, _) => probed(standing, found, policy, schedule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::RetryPolicy;
    use proptest::prelude::*;

    fn standing(probes: i16, landed: bool) -> Standing {
        Standing {
            progress: Progress {
                failures: 1,
                suspect: false,
                losses_alone: 0,
                not_yet: 0,
                since_not_yet: Duration::ZERO,
                laned: false,
                since_first: Duration::from_secs(30),
            },
            probes,
            landed,
        }
    }

    fn step(standing: Standing, found: &Probed) -> Step {
        probed(
            standing,
            found,
            &Policy::default(),
            &ProbeSchedule::default(),
        )
    }

    #[test]
    fn who_cannot_tell_is_asked_at_the_documented_times_and_then_a_person_is() {
        let cannot = Probed::Unknown { why: "x".into() };
        let times: Vec<Step> = (0..6).map(|n| step(standing(n, true), &cannot)).collect();
        let mut expected: Vec<Step> = [5, 30, 120, 600, 3_600]
            .map(|s| Step::ProbeAt(Duration::from_secs(s)))
            .to_vec();
        expected.push(Step::Person);
        assert_eq!(times, expected);
    }

    #[test]
    fn a_schedule_rises_and_is_not_empty() {
        let seconds = |times: &[u64]| {
            ProbeSchedule::new(times.iter().copied().map(Duration::from_secs).collect())
        };
        assert!(seconds(&[1, 2, 9]).is_some());
        for wrong in [&[][..], &[0], &[2, 2], &[3, 1], &[1; 21]] {
            assert_eq!(seconds(wrong), None, "{wrong:?}");
        }
    }

    fn any_found() -> impl Strategy<Value = Probed> {
        let text = || "[a-z]{0,4}".prop_map(String::from);
        prop_oneof![
            prop::option::of(text()).prop_map(|resource| Probed::Applied { resource }),
            text().prop_map(|reason| Probed::Refused { reason }),
            Just(Probed::Absent),
            text().prop_map(|why| Probed::Unknown { why }),
        ]
    }

    proptest! {
        // Reference: it is sent again only for "absent", asked behind the flight, with a budget left;
        // it ends only by a definite answer; otherwise it stays what it is.
        #[test]
        fn nothing_but_a_proof_ends_or_repeats_a_call(
            found in any_found(), failures in 0_i16..30, losses_alone in 0_i16..6, hours in 0_u64..200,
            probes in 0_i16..9, landed in any::<bool>(), crashes in 1_i16..6, laned in any::<bool>(), strict in any::<bool>(),
        ) {
            let on_dead = if strict { OnDead::Hold } else { OnDead::Skip };
            let policy = Policy { crashes, on_dead, ..Policy::default() };
            let standing = Standing {
                progress: Progress { failures, losses_alone, laned, since_first: Duration::from_hours(hours), ..standing(0, false).progress },
                probes,
                landed,
            };
            let step = probed(standing, &found, &policy, &ProbeSchedule::default());
            let spent = hours >= 72 && failures >= RetryPolicy::TRIES_MIN;
            let poison = losses_alone >= crashes;
            let ended = match &step {
                Step::Finish { ending, .. } => Some(*ending),
                _ => None,
            };
            match &found {
                Probed::Applied { .. } => prop_assert_eq!(ended, Some(Ending::Succeeded)),
                Probed::Refused { .. } => prop_assert_eq!(ended, Some(Ending::Failed)),
                Probed::Telling(..) => unreachable!("not drawn"),
                Probed::Absent if landed => {
                    let holds = laned && strict && (spent || poison);
                    prop_assert_eq!(matches!(step, Step::Hold { .. }), holds);
                    prop_assert_eq!(ended, ((spent || poison) && !holds).then_some(Ending::Dead));
                    prop_assert_eq!(step == Step::Release, !spent && !poison);
                }
                Probed::Absent | Probed::Unknown { .. } => {
                    prop_assert_eq!(ended, None);
                    prop_assert_ne!(&step, &Step::Release);
                    // Asked again as long as the schedule says so; "absent" never becomes a person's
                    // task for having been asked too early.
                    let asked = matches!(step, Step::ProbeAt(_));
                    prop_assert_eq!(asked, probes < 5);
                    if !asked {
                        let rest = if found == Probed::Absent { Step::ProbeWhenLanded } else { Step::Person };
                        prop_assert_eq!(step, rest);
                    }
                }
            }
        }
    }
}
