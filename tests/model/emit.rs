//! One emitted event: from the transaction that emits it to the one that stores it.
//!
//! | action | product |
//! | --- | --- |
//! | `Run`, `CommitRun`, `RunDies` | the emitter's transaction: its effect, and the row in `emitted` |
//! | `Take` | `emitted_claim.sql` |
//! | `LeaseEnds` | somebody else may take it, whether its holder is dead or slow |
//! | `Store` | the ingest transaction: `ingest_reserve.sql`, `emitted_stored.sql`, the comparison of the counts |
//! | `Die` | a relay dies |

use stateright::{Model, Property};

use crate::small;

const RELAYS: usize = 2;
const DEATHS: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Emitter {
    #[default]
    Ready,
    Open,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
enum Relay {
    #[default]
    Idle,
    /// It has read the row.
    Holds,
    /// It has deleted the row; only without [`Guard::DeletedWithStore`].
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    emitter: Emitter,
    effects: u8,
    /// Rows in `emitted`.
    rows: u8,
    leased: bool,
    relays: [Relay; RELAYS],
    /// Events stored, and copies recorded beside them.
    stored: u8,
    copies: u8,
    deaths: u8,
    /// Two relays had it at once (ghost).
    twice_taken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Run,
    CommitRun,
    RunDies,
    Take(usize),
    LeaseEnds,
    Delete(usize),
    Store(usize),
    Die(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// The row is written in the emitter's transaction (`oncehook.emit`).
    EmittedWithEffect,
    /// It leaves in the transaction that stores the event (`emitted_stored.sql`).
    DeletedWithStore,
    /// Fewer deleted than given: another has stored them (`Store::take_emitted`).
    CountCompared,
}

#[derive(Debug, Clone, Copy)]
struct Emit {
    removed: Option<Guard>,
}

impl Emit {
    fn has(self, guard: Guard) -> bool {
        self.removed != Some(guard)
    }
}

impl Model for Emit {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_die = state.deaths < DEATHS;
        match state.emitter {
            Emitter::Ready => actions.push(Action::Run),
            Emitter::Open => {
                actions.push(Action::CommitRun);
                if may_die {
                    actions.push(Action::RunDies);
                }
            }
            Emitter::Done => {}
        }
        if state.leased {
            actions.push(Action::LeaseEnds);
        }
        for (n, relay) in state.relays.iter().enumerate() {
            match relay {
                Relay::Idle if state.rows > 0 && !state.leased => actions.push(Action::Take(n)),
                Relay::Idle => {}
                Relay::Holds if !self.has(Guard::DeletedWithStore) => {
                    actions.push(Action::Delete(n));
                }
                Relay::Holds | Relay::Deleted => actions.push(Action::Store(n)),
            }
            if *relay != Relay::Idle && may_die {
                actions.push(Action::Die(n));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Run => {
                state.emitter = Emitter::Open;
                if !self.has(Guard::EmittedWithEffect) {
                    state.rows += 1;
                }
            }
            Action::CommitRun => {
                state.emitter = Emitter::Done;
                state.effects += 1;
                if self.has(Guard::EmittedWithEffect) {
                    state.rows += 1;
                }
            }
            Action::RunDies => {
                state.deaths += 1;
                state.emitter = Emitter::Ready;
            }
            Action::Take(relay) => {
                state.leased = true;
                state.twice_taken |= state.relays.contains(&Relay::Holds);
                state.relays[relay] = Relay::Holds;
            }
            Action::LeaseEnds => state.leased = false,
            Action::Delete(relay) => {
                state.rows = state.rows.saturating_sub(1);
                state.leased &= state.rows > 0;
                state.relays[relay] = Relay::Deleted;
            }
            Action::Store(relay) => {
                let deletes = state.relays[relay] == Relay::Holds;
                state.relays[relay] = Relay::Idle;
                // Rolled back.
                if deletes && state.rows == 0 && self.has(Guard::CountCompared) {
                    state.relays.sort_unstable();
                    return Some(state);
                }
                if deletes {
                    state.rows = state.rows.saturating_sub(1);
                    state.leased &= state.rows > 0;
                }
                // Its key.
                if state.stored == 0 {
                    state.stored = 1;
                } else {
                    state.copies += 1;
                }
            }
            Action::Die(relay) => {
                state.deaths += 1;
                state.relays[relay] = Relay::Idle;
            }
        }
        state.relays.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no event without its effect", |_, state: &State| {
                state.stored <= state.effects
            }),
            Property::always("no copy of what was emitted once", |_, state: &State| {
                state.copies == 0
            }),
            Property::always("rest means done", |world: &Emit, state: &State| {
                let mut actions = Vec::new();
                world.actions(state, &mut actions);
                !actions.is_empty() || (state.effects, state.stored, state.rows) == (1, 1, 0)
            }),
            Property::sometimes("two relays have it at once", |_, state: &State| {
                state.twice_taken
            }),
            Property::sometimes("an emitter dies and another stores", |_, state: &State| {
                state.deaths > 0 && state.stored > 0
            }),
        ]
    }
}

#[test]
fn an_emitted_event_is_there_once_and_exactly_if_its_effect_is() {
    small::holds("emit", Emit { removed: None });
}

#[test]
fn no_guard_of_emit_is_decoration() {
    for (guard, property) in [
        (Guard::EmittedWithEffect, "no event without its effect"),
        (Guard::DeletedWithStore, "rest means done"),
        (Guard::CountCompared, "no copy of what was emitted once"),
    ] {
        let world = Emit {
            removed: Some(guard),
        };
        small::breaks(world, property);
    }
}
