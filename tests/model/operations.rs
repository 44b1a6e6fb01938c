//! One idempotency key of an operation: submitted, run, answered, failed, expired, and submitted again.
//!
//! What a request is told is decided by the product's own `domain::operation::decide`.
//!
//! | action | product |
//! | --- | --- |
//! | `Submit` | the ingest transaction: reserve, or read what is known (`ingest_reserve.sql`, `ingest_known.sql`); an expired key is seen |
//! | `Replace` | the renewal of an expired key, under its lock |
//! | `Look`, `TimeOut` | `store::operation` and the answer table, while the request may wait and afterwards |
//! | `Open` | another run of what failed without any effect (`replay_open.sql`) |
//! | `Claim`, `Done`, `Fail` | a try, and the transaction that ends it: outcome and response |
//! | `Respond` | only without [`Guard::OneTransaction`]: the response, in a transaction of its own |
//! | `Lose` | a call has its effect, and its answer is lost: sent again, given up, or uncertain |
//! | `Probe` | the receiver says "applied" |
//! | `Late` | the lost answer is kept after all |
//! | `Die` | a node dies at its work |
//! | `Expire`, `Purge` | the horizons of key and response pass, by the database's clock |

use bytes::Bytes;
use jiff::Timestamp;
use oncehook::domain::operation::{
    self, Asked, Ended, OnFailure, OperationSpec, Profile, Record, Response, Saying, Seen, Stored,
};
use oncehook::domain::{DecidedBy, Ending};
use stateright::{Model, Property};
use std::time::Duration;
use uuid::Uuid;

use crate::small;

/// What each request asks for: a client that sends its intent three times, and one intent of other content.
const CONTENT: [u8; 4] = [1, 1, 1, 2];
const INTENTS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Work {
    /// Effect and outcome are one transaction.
    Transaction,
    /// A call to a receiver that honours effect keys.
    Honours,
    /// A call to a receiver that ignores them and can be asked.
    Probed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Live {
    #[default]
    No,
    Ready,
    Leased,
    Uncertain,
}

/// An intent: an event, its delivery, its last outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
struct Intent {
    content: u8,
    generation: u8,
    run: u8,
    live: Live,
    /// How its last run ended: done, or dead.
    done: Option<bool>,
    /// The run whose response is kept.
    response: Option<u8>,
    purged: bool,
    /// An answer is on its way that nobody waits for.
    late: bool,
    /// It was kept.
    evidence: bool,
    /// Outcome without response, until a node writes it.
    owes: bool,
    /// Effects it had (ghost).
    effects: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Told {
    Stored { intent: u8, run: u8 },
    Accepted,
    Expired { intent: u8 },
    Mismatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Request {
    #[default]
    Unsent,
    /// It has seen an expired key that names this intent.
    Renewing(u8),
    Waiting {
        intent: u8,
        seen: u8,
        began: Option<u8>,
        may_begin: bool,
    },
    /// It is about to have it run again behind this run.
    Opening {
        intent: u8,
        run: u8,
    },
    Told(Told),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    intent: u8,
    expired: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    key: Option<Key>,
    intents: Vec<Intent>,
    requests: [Request; CONTENT.len()],
    /// Effect keys that the receiver has applied.
    applied: Vec<u8>,
    losses: u8,
    failures: u8,
    deaths: u8,
    expiries: u8,
    purges: u8,
    /// Completed at least once (ghost): the answer that must stay.
    answers: [Option<u8>; INTENTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Submit(usize),
    Replace(usize),
    Look(usize),
    TimeOut(usize),
    Open(usize),
    Claim(usize),
    Done(usize),
    Respond(usize),
    Fail(usize),
    Lose(usize, bool),
    Probe(usize),
    Late(usize),
    Die(usize),
    Expire,
    Purge(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Content is compared before state (`operation::decide`).
    ContentFirst,
    /// A renewal replaces what it has seen, and counts its row.
    CompareAndSet,
    /// Nothing live or uncertain is replaced.
    NothingLive,
    /// A renewed key has effect keys of its own.
    NewGeneration,
    /// Another run is opened behind the run that was seen (`store::replay`).
    ExpectedRun,
    /// And only of the intent that the key still names.
    KeyStillNames,
    /// It keeps the effect key.
    SameEffectKey,
    /// The response is written with the outcome.
    OneTransaction,
}

#[derive(Debug, Clone, Copy)]
struct Operations {
    removed: Option<Guard>,
    work: Work,
}

impl Operations {
    fn has(self, guard: Guard) -> bool {
        self.removed != Some(guard)
    }

    /// Whether the key may name another intent.
    fn is_free(self, intent: &Intent) -> bool {
        intent.live == Live::No || !self.has(Guard::NothingLive)
    }

    fn effect(self, state: &mut State, at: usize) {
        let generation = state.intents[at].generation;
        if self.work == Work::Honours && state.applied.contains(&generation) {
            return;
        }
        state.applied.push(generation);
        state.intents[at].effects += 1;
    }

    fn end(self, state: &mut State, at: usize, done: bool) {
        let separate = !self.has(Guard::OneTransaction);
        let intent = &mut state.intents[at];
        intent.live = Live::No;
        intent.done = Some(done);
        intent.owes = separate;
        if !separate {
            intent.response = Some(intent.run);
        }
    }

    fn begin(state: &mut State, request: usize, generation: u8) {
        state.intents.push(Intent {
            content: CONTENT[request],
            generation,
            run: 1,
            live: Live::Ready,
            ..Intent::default()
        });
        let intent = u8::try_from(state.intents.len()).unwrap() - 1;
        state.key = Some(Key {
            intent,
            expired: false,
        });
        state.requests[request] = Request::Waiting {
            intent,
            seen: 0,
            began: Some(1),
            may_begin: true,
        };
    }

    fn submit(self, state: &mut State, request: usize) {
        let Some(key) = state.key else {
            Self::begin(state, request, 0);
            return;
        };
        let known = state.intents[usize::from(key.intent)];
        if key.expired && self.is_free(&known) {
            state.requests[request] = Request::Renewing(key.intent);
            return;
        }
        state.requests[request] = Request::Waiting {
            intent: key.intent,
            seen: if known.content == CONTENT[request] {
                1
            } else {
                2
            },
            began: None,
            may_begin: true,
        };
    }

    fn replace(self, state: &mut State, request: usize, saw: u8) {
        let holds = state.key.is_some_and(|key| {
            key.intent == saw
                && key.expired
                && self.is_free(&state.intents[usize::from(key.intent)])
        });
        if !holds && self.has(Guard::CompareAndSet) {
            // It begins anew with what is there now.
            state.requests[request] = Request::Unsent;
            return;
        }
        let highest = state.intents.iter().map(|intent| intent.generation).max();
        let generation = if self.has(Guard::NewGeneration) {
            highest.unwrap_or(0) + 1
        } else {
            state.intents[usize::from(saw)].generation
        };
        Self::begin(state, request, generation);
    }

    /// One reading of the table for a request that waits.
    fn look(self, state: &mut State, request: usize, time_left: bool) -> Option<()> {
        let Request::Waiting {
            intent,
            seen,
            began,
            may_begin,
        } = state.requests[request]
        else {
            return None;
        };
        let at = usize::from(intent);
        let record = record(&state.intents[at]);
        let seen = match seen {
            0 => Seen::New,
            1 => Seen::Same,
            _ if !self.has(Guard::ContentFirst) && state.intents[at].done.is_some() => Seen::Same,
            _ => Seen::Other,
        };
        let asked = Asked {
            seen,
            began: began.map(i16::from),
            time_left,
            may_begin,
        };
        state.requests[request] = match operation::decide(asked, Some(&record), &spec()) {
            operation::Action::Wait => return None,
            operation::Action::BeginAgain { run } => Request::Opening {
                intent,
                run: u8::try_from(run).unwrap(),
            },
            operation::Action::Say(saying) => Request::Told(match saying {
                Saying::Mismatch => Told::Mismatch,
                Saying::Accepted => Told::Accepted,
                Saying::Expired => Told::Expired { intent },
                Saying::Stored { .. } => {
                    let run = state.intents[at].response.unwrap();
                    if state.intents[at].done == Some(true) {
                        state.answers[at].get_or_insert(run);
                    }
                    Told::Stored { intent, run }
                }
                other => panic!("{other:?}"),
            }),
        };
        Some(())
    }

    fn open(self, state: &mut State, request: usize, at: u8, behind: u8) {
        let named = state.key.is_some_and(|key| key.intent == at);
        let intent = &mut state.intents[usize::from(at)];
        // The primary key of `delivery` stands in any case.
        let behind_it = intent.live == Live::No
            && (intent.run == behind && intent.done == Some(false)
                || !self.has(Guard::ExpectedRun));
        let opens = behind_it && (named || !self.has(Guard::KeyStillNames));
        if opens {
            intent.run += 1;
            intent.live = Live::Ready;
            intent.done = None;
            intent.response = None;
            if !self.has(Guard::SameEffectKey) {
                intent.generation += 10;
            }
        }
        let began = opens.then_some(intent.run);
        state.requests[request] = Request::Waiting {
            intent: at,
            seen: 1,
            began,
            may_begin: false,
        };
    }
}

fn spec() -> OperationSpec {
    OperationSpec {
        volatile: Vec::new(),
        wait: Duration::from_secs(5),
        wait_max: Duration::from_mins(1),
        profile: Profile::Standard,
        on_failure: OnFailure::Release,
        headers: Vec::new(),
        keep_key: None,
        keep_response: None,
    }
}

/// What the product reads of it.
fn record(intent: &Intent) -> Record {
    let now = Timestamp::UNIX_EPOCH;
    let state = match (intent.live, intent.done) {
        (Live::Uncertain, _) => operation::State::Uncertain,
        (Live::No, Some(true)) => operation::State::Completed,
        (Live::No, Some(false)) => operation::State::Failed,
        _ => operation::State::Processing,
    };
    let ended = intent.done.map(|done| Ended {
        ending: if done {
            Ending::Succeeded
        } else {
            Ending::Dead
        },
        decided_by: DecidedBy::Handler,
        at: now,
        reason: None,
        evidence_of_effect: intent.evidence,
    });
    let stored = match intent.response {
        _ if intent.purged => Stored::Purged,
        Some(run) => Stored::Kept(Response {
            status: 200,
            headers: Vec::new(),
            body: Bytes::copy_from_slice(&[run]),
        }),
        None => Stored::Nothing,
    };
    Record {
        id: Uuid::nil(),
        run: i16::from(intent.run),
        state,
        ended,
        stored,
        attempts: 1,
        resource: None,
        external_id: None,
        correlation_id: Uuid::nil(),
        created_at: now,
        updated_at: now,
        expires_at: None,
        next_check_at: None,
    }
}

impl Model for Operations {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, request) in state.requests.iter().enumerate() {
            match request {
                // Requests of one content are alike: they come in their order.
                Request::Unsent => {
                    let alike = |before: &usize| CONTENT[*before] == CONTENT[at];
                    if (0..at)
                        .rfind(alike)
                        .is_none_or(|before| state.requests[before] != Request::Unsent)
                    {
                        actions.push(Action::Submit(at));
                    }
                }
                Request::Renewing(_) => actions.push(Action::Replace(at)),
                Request::Waiting { .. } => {
                    actions.extend([Action::Look(at), Action::TimeOut(at)]);
                }
                Request::Opening { .. } => actions.push(Action::Open(at)),
                Request::Told(_) => {}
            }
        }
        for (at, intent) in state.intents.iter().enumerate() {
            match intent.live {
                Live::No => {}
                Live::Ready => actions.push(Action::Claim(at)),
                Live::Leased => {
                    actions.push(Action::Done(at));
                    if state.failures == 0 {
                        actions.push(Action::Fail(at));
                    }
                    if self.work != Work::Transaction && state.losses == 0 {
                        actions.push(Action::Lose(at, false));
                        if self.work == Work::Honours {
                            actions.push(Action::Lose(at, true));
                        }
                    }
                    if self.work == Work::Transaction && state.deaths == 0 {
                        actions.push(Action::Die(at));
                    }
                }
                Live::Uncertain => actions.push(Action::Probe(at)),
            }
            if intent.owes {
                actions.push(Action::Respond(at));
                if state.deaths == 0 {
                    actions.push(Action::Die(at));
                }
            }
            if intent.late {
                actions.push(Action::Late(at));
            }
            if intent.response.is_some() && !intent.purged && state.purges == 0 {
                actions.push(Action::Purge(at));
            }
        }
        if state.key.is_some_and(|key| !key.expired) && state.expiries == 0 {
            actions.push(Action::Expire);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Submit(at) => self.submit(&mut state, at),
            Action::Replace(at) => match state.requests[at] {
                Request::Renewing(saw) if state.intents.len() < INTENTS => {
                    self.replace(&mut state, at, saw);
                }
                _ => return None,
            },
            Action::Look(at) => self.look(&mut state, at, true)?,
            Action::TimeOut(at) => self.look(&mut state, at, false)?,
            Action::Open(at) => match state.requests[at] {
                Request::Opening { intent, run } => self.open(&mut state, at, intent, run),
                _ => return None,
            },
            Action::Claim(at) => state.intents[at].live = Live::Leased,
            Action::Done(at) => {
                self.effect(&mut state, at);
                self.end(&mut state, at, true);
            }
            Action::Respond(at) => {
                let intent = &mut state.intents[at];
                intent.owes = false;
                intent.response = Some(intent.run);
            }
            Action::Fail(at) => {
                state.failures += 1;
                self.end(&mut state, at, false);
            }
            Action::Lose(at, gives_up) => {
                state.losses += 1;
                self.effect(&mut state, at);
                if gives_up {
                    self.end(&mut state, at, false);
                    state.intents[at].late = true;
                } else if self.work == Work::Honours {
                    state.intents[at].live = Live::Ready;
                } else {
                    state.intents[at].live = Live::Uncertain;
                }
            }
            Action::Probe(at) => self.end(&mut state, at, true),
            Action::Late(at) => {
                let intent = &mut state.intents[at];
                intent.late = false;
                // Of a run that has since ended otherwise it says nothing new.
                intent.evidence = intent.done == Some(false);
            }
            Action::Die(at) => {
                state.deaths += 1;
                let intent = &mut state.intents[at];
                intent.owes = false;
                if intent.live == Live::Leased {
                    intent.live = Live::Ready;
                }
            }
            Action::Expire => {
                state.expiries += 1;
                if let Some(key) = &mut state.key {
                    key.expired = true;
                }
            }
            Action::Purge(at) => {
                state.purges += 1;
                state.intents[at].purged = true;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("one effect per intent", |_, state: &State| {
                let ended = |intent: &&Intent| intent.done == Some(true);
                state.intents.iter().all(|intent| intent.effects <= 1)
                    && state.intents.iter().filter(ended).all(|i| i.effects == 1)
            }),
            Property::always("what runs is what its key names", |_, state: &State| {
                let named = |at: usize| state.key.is_some_and(|key| usize::from(key.intent) == at);
                let live = |(_, intent): &(usize, &Intent)| intent.live != Live::No;
                let mut running = state.intents.iter().enumerate().filter(live);
                running.all(|(at, _)| named(at))
            }),
            Property::always("other content is told nothing of it", |_, state: &State| {
                state
                    .requests
                    .iter()
                    .zip(CONTENT)
                    .all(|(request, content)| match request {
                        Request::Told(Told::Stored { intent, .. } | Told::Expired { intent }) => {
                            state.intents[usize::from(*intent)].content == content
                        }
                        _ => true,
                    })
            }),
            Property::always("every retry gets the same answer", |_, state: &State| {
                state.requests.iter().all(|request| match request {
                    Request::Told(Told::Stored { intent, run }) => {
                        state.answers[usize::from(*intent)].is_none_or(|answer| *run <= answer)
                    }
                    _ => true,
                }) && state.intents.iter().zip(state.answers).all(
                    // Nothing comes after what was told as done.
                    |(intent, answer)| answer.is_none_or(|answer| intent.run == answer),
                )
            }),
            Property::always("only what was purged is gone", |_, state: &State| {
                state.requests.iter().all(|request| match request {
                    Request::Told(Told::Expired { intent }) => {
                        state.intents[usize::from(*intent)].purged
                    }
                    _ => true,
                })
            }),
            Property::always("rest means done", |world: &Operations, state: &State| {
                let mut actions = Vec::new();
                world.actions(state, &mut actions);
                let told = |request: &Request| matches!(request, Request::Told(_));
                !actions.is_empty()
                    || state.requests.iter().all(told)
                        && state.intents.iter().all(|i| i.live == Live::No)
            }),
            Property::sometimes("a retry is told what the first was", |_, state: &State| {
                let told = |request: &&Request| {
                    matches!(request, Request::Told(Told::Stored { intent: 0, run: 1 }))
                };
                state.requests.iter().filter(told).count() > 1
            }),
            Property::sometimes("other content is refused", |_, state: &State| {
                state.requests.contains(&Request::Told(Told::Mismatch))
            }),
            Property::sometimes("a renewed key takes effect", |_, state: &State| {
                state.intents.get(1).is_some_and(|i| i.done == Some(true))
                    && state.intents[0].done == Some(true)
            }),
            Property::sometimes("what failed runs again and is done", |_, state: &State| {
                state
                    .intents
                    .iter()
                    .any(|i| i.run == 2 && i.done == Some(true))
            }),
            Property::sometimes("a purged answer is told as gone", |_, state: &State| {
                let gone = |r: &Request| matches!(r, Request::Told(Told::Expired { .. }));
                state.requests.iter().any(gone)
            }),
        ];
        if self.work == Work::Honours {
            properties.push(Property::sometimes(
                "what a late answer says is done is not begun again",
                |_, state: &State| {
                    state.intents.iter().any(|i| i.evidence)
                        && state.requests.iter().all(|r| matches!(r, Request::Told(_)))
                },
            ));
        }
        properties
    }
}

const WORKS: [Work; 3] = [Work::Transaction, Work::Honours, Work::Probed];

#[test]
fn a_key_is_one_intent_and_one_answer() {
    for work in WORKS {
        let world = Operations {
            removed: None,
            work,
        };
        small::holds("operations", world);
    }
}

#[test]
fn no_guard_of_operations_is_decoration() {
    for (guard, work, breaks) in [
        (
            Guard::ContentFirst,
            Work::Transaction,
            "other content is told nothing of it",
        ),
        (
            Guard::CompareAndSet,
            Work::Transaction,
            "what runs is what its key names",
        ),
        (
            Guard::NothingLive,
            Work::Probed,
            "what runs is what its key names",
        ),
        (Guard::NewGeneration, Work::Honours, "one effect per intent"),
        (
            Guard::ExpectedRun,
            Work::Transaction,
            "every retry gets the same answer",
        ),
        (
            Guard::KeyStillNames,
            Work::Transaction,
            "what runs is what its key names",
        ),
        (Guard::SameEffectKey, Work::Honours, "one effect per intent"),
        (
            Guard::OneTransaction,
            Work::Transaction,
            "only what was purged is gone",
        ),
    ] {
        let world = Operations {
            removed: Some(guard),
            work,
        };
        small::breaks(world, breaks);
    }
}
