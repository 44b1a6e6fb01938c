//! A pause, and its end: one handler or source, two nodes that read about it at their polls.
//!
//! | action | product |
//! | --- | --- |
//! | `Pause`, `Resume` | a person's command; `Resume` also brings back what was set aside |
//! | `Poll` | `flow_switches.sql`; what is set aside and not paused comes back (`delivery_aside_end.sql`) |
//! | `Claim`, `End` | a try |
//! | `ClaimAside`, `SetAside` | a claim that finds what is of a paused source, and puts it aside (`claim::without_paused`) |
//! | `Restart` | a node dies and starts again |

use stateright::{Model, Property};

use crate::small;

const NODES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Work {
    #[default]
    Ready,
    Running(usize),
    /// Claimed by a node that knows of the pause.
    Found(usize),
    Aside,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    /// Whether it is paused, as far as this node has read.
    known: Option<bool>,
    /// It has polled, or started, since the pause (ghost).
    told: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    paused: bool,
    pauses: u8,
    restarts: u8,
    nodes: [Node; NODES],
    work: Work,
    /// A try began on a node that had been told (ghost).
    broken: bool,
    /// It was set aside behind the end of the pause (ghost).
    late_aside: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Pause,
    Resume,
    Poll(usize),
    Claim(usize),
    ClaimAside(usize),
    SetAside,
    End,
    Restart(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Nothing is claimed before pauses were read (`Flow::switches`).
    ReadFirst,
    /// Every poll reads pauses anew (`claim::look_at_switches`).
    ReadAtPolls,
    /// Every poll looks for what is aside of no pause, not only the command (`Switches::left_aside`).
    AsideAtPolls,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    removed: Option<Guard>,
    /// Of a source: found by the claim and set aside. Of a handler: not claimed.
    source: bool,
}

impl Pause {
    fn has(self, guard: Guard) -> bool {
        self.removed != Some(guard)
    }

    fn polled(self, state: &State, node: usize) -> State {
        let mut state = state.clone();
        let known = &mut state.nodes[node].known;
        if known.is_none() || self.has(Guard::ReadAtPolls) {
            *known = Some(state.paused);
        }
        state.nodes[node].told |= state.paused;
        if !state.paused && state.work == Work::Aside && self.has(Guard::AsideAtPolls) {
            state.work = Work::Ready;
        }
        state
    }
}

impl Model for Pause {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.paused {
            actions.push(Action::Resume);
        } else if state.pauses == 0 {
            actions.push(Action::Pause);
        }
        for (n, node) in state.nodes.iter().enumerate() {
            // One that changes nothing is no step.
            if self.polled(state, n) != *state {
                actions.push(Action::Poll(n));
            }
            let paused = node.known.unwrap_or(self.has(Guard::ReadFirst));
            match (state.work, paused) {
                (Work::Ready, false) => actions.push(Action::Claim(n)),
                (Work::Ready, true) if self.source && node.known.is_some() => {
                    actions.push(Action::ClaimAside(n));
                }
                _ => {}
            }
            if state.restarts == 0 {
                actions.push(Action::Restart(n));
            }
        }
        match state.work {
            Work::Running(_) => actions.push(Action::End),
            Work::Found(_) => actions.push(Action::SetAside),
            _ => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Pause => {
                state.paused = true;
                state.pauses += 1;
                for node in &mut state.nodes {
                    node.told = false;
                }
            }
            Action::Resume => {
                state.paused = false;
                if state.work == Work::Aside {
                    state.work = Work::Ready;
                }
            }
            Action::Poll(node) => state = self.polled(&state, node),
            Action::Claim(node) => {
                state.broken |= state.paused && state.nodes[node].told;
                state.work = Work::Running(node);
            }
            Action::ClaimAside(node) => state.work = Work::Found(node),
            Action::SetAside => {
                state.late_aside |= !state.paused;
                state.work = Work::Aside;
            }
            Action::End => state.work = Work::Done,
            Action::Restart(node) => {
                state.restarts += 1;
                state.nodes[node] = Node {
                    known: None,
                    told: true,
                };
                // Its lease ends.
                if [Work::Running(node), Work::Found(node)].contains(&state.work) {
                    state.work = Work::Ready;
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(
                "nothing begins on a node that was told",
                |_, state: &State| !state.broken,
            ),
            Property::always(
                "rest means done, or a pause",
                |world: &Pause, state: &State| {
                    let mut actions = Vec::new();
                    world.actions(state, &mut actions);
                    let optional = |action: &Action| {
                        matches!(action, Action::Pause | Action::Resume | Action::Restart(_))
                    };
                    state.paused || state.work == Work::Done || !actions.iter().all(optional)
                },
            ),
            Property::sometimes(
                "it waits for the end of a pause and is done",
                |_, state: &State| state.pauses > 0 && !state.paused && state.work == Work::Done,
            ),
        ];
        if self.source {
            properties.push(Property::sometimes(
                "set aside too late",
                |_, state: &State| state.late_aside,
            ));
        }
        properties
    }
}

#[test]
fn a_pause_is_kept_by_whoever_was_told_and_ends() {
    for source in [false, true] {
        small::holds(
            "pause",
            Pause {
                removed: None,
                source,
            },
        );
    }
}

#[test]
fn no_guard_of_a_pause_is_decoration() {
    for (guard, source, property) in [
        (
            Guard::ReadFirst,
            false,
            "nothing begins on a node that was told",
        ),
        (
            Guard::ReadAtPolls,
            false,
            "nothing begins on a node that was told",
        ),
        (Guard::AsideAtPolls, true, "rest means done, or a pause"),
    ] {
        let world = Pause {
            removed: Some(guard),
            source,
        };
        small::breaks(world, property);
    }
}
