//! The answer table: what a request is told, by what is stored under its key.

use super::super::{DecidedBy, Ending};
use super::{OnFailure, OperationSpec, Profile, Record, State, Stored};

/// What the reservation found under the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Nothing: it is this request's own from now on.
    New,
    /// The same intent.
    Same,
    /// An intent of other content.
    Other,
}

/// What is known of a request on its way to its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// What the reservation found.
    pub seen: Seen,
    /// The run that this request itself began, if any.
    pub began: Option<i16>,
    /// Whether it may still wait.
    pub time_left: bool,
    /// Whether another run may be begun for it. Once it was tried, the answer is what is stored.
    pub may_begin: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Wait for the outcome, then look again.
    Wait,
    /// Begin another run behind this one, then look again.
    BeginAgain {
        /// The run that has failed.
        run: i16,
    },
    /// Answer.
    Say(Saying),
}

/// What a request is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saying {
    /// The key names another intent.
    Mismatch,
    /// Another request has begun it and it is under way (profile `ietf`).
    InProgress,
    /// 202: under way, or its result is being looked for; where to ask, and when.
    Accepted,
    /// The stored answer, byte by byte.
    Stored {
        /// Whether this request did not bring it about itself.
        replayed: bool,
    },
    /// It has ended, and its answer is not kept any more.
    Expired,
    /// Nothing is known of a key that was there a moment ago: come again.
    Unavailable,
}

/// The table. Content comes before state: a key with other content is told so whatever became of the
/// first intent. What may have had an effect is never begun again.
pub fn decide(asked: Asked, record: Option<&Record>, spec: &OperationSpec) -> Action {
    if asked.seen == Seen::Other {
        return Action::Say(Saying::Mismatch);
    }
    let Some(record) = record else {
        return Action::Say(Saying::Unavailable);
    };
    let own = asked.began == Some(record.run);
    match record.state {
        State::Processing if spec.profile == Profile::Ietf && !own => {
            Action::Say(Saying::InProgress)
        }
        State::Processing if asked.time_left => Action::Wait,
        State::Processing | State::Uncertain => Action::Say(Saying::Accepted),
        State::Failed if begins_again(asked, record, spec) => {
            Action::BeginAgain { run: record.run }
        }
        State::Completed | State::Failed => Action::Say(match record.stored {
            Stored::Kept(_) => Saying::Stored { replayed: !own },
            Stored::Nothing | Stored::Purged => Saying::Expired,
        }),
    }
}

/// Whether a failed operation runs again for this request: it ended as a dead letter by the engine's
/// own judgement, nothing says that it took effect after all, and its settings do not keep failures.
fn begins_again(asked: Asked, record: &Record, spec: &OperationSpec) -> bool {
    asked.may_begin
        && asked.began.is_none()
        && spec.on_failure == OnFailure::Release
        && record.ended.as_ref().is_some_and(|ended| {
            ended.ending == Ending::Dead
                && ended.decided_by == DecidedBy::Handler
                && !ended.evidence_of_effect
        })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use uuid::Uuid;

    use super::super::{Ended, Response};
    use super::*;

    fn spec(profile: Profile, on_failure: OnFailure) -> OperationSpec {
        OperationSpec {
            volatile: Vec::new(),
            wait: Duration::from_secs(5),
            wait_max: Duration::from_mins(1),
            profile,
            on_failure,
            headers: Vec::new(),
            keep_key: None,
            keep_response: None,
        }
    }

    fn record(run: i16, state: State, ended: Option<Ended>, stored: Stored) -> Record {
        let at = "2026-12-01T00:00:00Z".parse().unwrap();
        Record {
            run,
            state,
            ended,
            stored,
            attempts: 1,
            created_at: at,
            updated_at: at,
            ..Record::sample(Uuid::nil())
        }
    }

    fn ended(ending: Ending, decided_by: DecidedBy, evidence_of_effect: bool) -> Ended {
        Ended {
            ending,
            decided_by,
            at: "2026-12-01T00:00:00Z".parse().unwrap(),
            reason: None,
            evidence_of_effect,
        }
    }

    fn kept() -> Stored {
        Stored::Kept(Response {
            status: 201,
            headers: Vec::new(),
            body: Bytes::from_static(b"{}"),
        })
    }

    fn asked(seen: Seen, began: Option<i16>, time_left: bool) -> Asked {
        Asked {
            seen,
            began,
            time_left,
            may_begin: true,
        }
    }

    /// Every combination of what can be stored and asked.
    fn every(mut check: impl FnMut(&Asked, Option<&Record>, &OperationSpec, Action)) {
        const ENDINGS: [(Ending, State); 5] = [
            (Ending::Succeeded, State::Completed),
            (Ending::Failed, State::Completed),
            (Ending::Skipped, State::Completed),
            (Ending::Dead, State::Failed),
            (Ending::Cancelled, State::Failed),
        ];
        let deciders = [
            DecidedBy::Handler,
            DecidedBy::Probe,
            DecidedBy::Operator,
            DecidedBy::Webhook,
        ];
        let mut records = vec![None];
        for state in [State::Processing, State::Uncertain] {
            // The second run of one that has failed before: how the first ended is no answer.
            let before = ended(Ending::Dead, DecidedBy::Handler, false);
            for of_before in [None, Some(before)] {
                records.push(Some(record(2, state, of_before, Stored::Nothing)));
            }
        }
        for (ending, state) in ENDINGS {
            for decided_by in deciders {
                for evidence in [false, true] {
                    for stored in [Stored::Nothing, kept(), Stored::Purged] {
                        let how = ended(ending, decided_by, evidence);
                        records.push(Some(record(2, state, Some(how), stored)));
                    }
                }
            }
        }
        let mut combinations = 0;
        for record in &records {
            for profile in [Profile::Standard, Profile::Ietf] {
                for on_failure in [OnFailure::Release, OnFailure::Keep] {
                    for seen in [Seen::New, Seen::Same, Seen::Other] {
                        for began in [None, Some(1), Some(2)] {
                            for (time_left, may_begin) in
                                [(true, true), (true, false), (false, true), (false, false)]
                            {
                                let asked = Asked {
                                    seen,
                                    began,
                                    time_left,
                                    may_begin,
                                };
                                let spec = spec(profile, on_failure);
                                let action = decide(asked, record.as_ref(), &spec);
                                check(&asked, record.as_ref(), &spec, action);
                                combinations += 1;
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(combinations, 125 * 2 * 2 * 3 * 3 * 4);
    }

    #[test]
    fn other_content_is_told_so_in_every_state_and_begins_nothing() {
        every(|asked, _, _, action| {
            let mismatch = action == Action::Say(Saying::Mismatch);
            assert_eq!(mismatch, asked.seen == Seen::Other, "{asked:?} {action:?}");
        });
    }

    #[test]
    fn only_what_failed_by_itself_without_effect_begins_again_and_once_a_request() {
        every(|asked, record, spec, action| {
            let Action::BeginAgain { run } = action else {
                return;
            };
            let record = record.unwrap();
            let how = record.ended.as_ref().unwrap();
            assert_eq!((run, record.state), (2, State::Failed));
            assert_eq!(
                (how.ending, how.decided_by),
                (Ending::Dead, DecidedBy::Handler)
            );
            assert!(!how.evidence_of_effect);
            assert_eq!(spec.on_failure, OnFailure::Release);
            assert!(asked.may_begin && asked.began.is_none());
        });
    }

    #[test]
    fn an_answer_is_replayed_only_where_one_is_kept_and_waiting_ends() {
        every(|asked, record, spec, action| match action {
            Action::Wait => {
                assert!(asked.time_left);
                let record = record.unwrap();
                assert_eq!(record.state, State::Processing);
                let own = asked.began == Some(record.run);
                assert!(own || spec.profile == Profile::Standard);
            }
            Action::Say(Saying::Stored { replayed }) => {
                let record = record.unwrap();
                assert!(matches!(record.stored, Stored::Kept(_)));
                assert!(matches!(record.state, State::Completed | State::Failed));
                assert_eq!(replayed, asked.began != Some(2));
            }
            Action::Say(Saying::Expired) => {
                let record = record.unwrap();
                assert!(!matches!(record.stored, Stored::Kept(_)));
                assert!(matches!(record.state, State::Completed | State::Failed));
            }
            Action::Say(Saying::Accepted) => {
                let state = record.unwrap().state;
                assert!(
                    state == State::Uncertain || (state == State::Processing && !asked.time_left)
                );
            }
            Action::Say(Saying::InProgress) => {
                assert_eq!(spec.profile, Profile::Ietf);
                assert_eq!(record.unwrap().state, State::Processing);
            }
            Action::Say(Saying::Unavailable) => assert!(record.is_none()),
            Action::Say(Saying::Mismatch) | Action::BeginAgain { .. } => {}
        });
    }

    #[test]
    fn every_row_of_the_table() {
        let standard = spec(Profile::Standard, OnFailure::Release);
        let ietf = spec(Profile::Ietf, OnFailure::Release);
        let keep = spec(Profile::Standard, OnFailure::Keep);
        let new = asked(Seen::New, Some(1), true);
        let same = asked(Seen::Same, None, true);
        let late = asked(Seen::Same, None, false);
        let again = asked(Seen::Same, Some(2), true);
        let processing = record(1, State::Processing, None, Stored::Nothing);
        let rerun = record(2, State::Processing, None, Stored::Nothing);
        let uncertain = record(1, State::Uncertain, None, Stored::Nothing);
        let by_handler = |ending| Some(ended(ending, DecidedBy::Handler, false));
        let done = record(1, State::Completed, by_handler(Ending::Succeeded), kept());
        let no = record(1, State::Completed, by_handler(Ending::Failed), kept());
        let dead = record(1, State::Failed, by_handler(Ending::Dead), kept());
        let proved = ended(Ending::Dead, DecidedBy::Handler, true);
        let proved = record(1, State::Failed, Some(proved), kept());
        let given_up = ended(Ending::Dead, DecidedBy::Operator, false);
        let given_up = record(1, State::Failed, Some(given_up), kept());
        let purged = Stored::Purged;
        let purged = record(1, State::Completed, by_handler(Ending::Succeeded), purged);
        let first = Action::Say(Saying::Stored { replayed: false });
        let replay = Action::Say(Saying::Stored { replayed: true });
        let say = Action::Say;
        for (asked, record, spec, action) in [
            (&new, &processing, &standard, Action::Wait),
            (&new, &processing, &ietf, Action::Wait),
            (&new, &done, &standard, first),
            (&new, &no, &standard, first),
            // It died for this request: that is its answer, and the next one begins again.
            (&new, &dead, &standard, first),
            (&same, &processing, &standard, Action::Wait),
            (&late, &processing, &standard, say(Saying::Accepted)),
            (&same, &processing, &ietf, say(Saying::InProgress)),
            (&late, &processing, &ietf, say(Saying::InProgress)),
            // The retry that has itself begun the run waits like the first.
            (&again, &rerun, &ietf, Action::Wait),
            (&same, &uncertain, &standard, say(Saying::Accepted)),
            (&same, &uncertain, &ietf, say(Saying::Accepted)),
            (&same, &done, &ietf, replay),
            (&same, &no, &standard, replay),
            (&same, &dead, &standard, Action::BeginAgain { run: 1 }),
            (&same, &dead, &keep, replay),
            (&same, &proved, &standard, replay),
            (&same, &given_up, &standard, replay),
            (&same, &purged, &standard, say(Saying::Expired)),
        ] {
            let decided = decide(*asked, Some(record), spec);
            assert_eq!(decided, action, "{asked:?} {record:?}");
        }
        let refused = Asked {
            may_begin: false,
            ..same
        };
        assert_eq!(decide(refused, Some(&dead), &standard), replay);
        assert_eq!(decide(same, None, &standard), say(Saying::Unavailable));
    }
}
