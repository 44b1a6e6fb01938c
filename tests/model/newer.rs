//! `apply_if_newer`: two events about one object, of which the second is newer, in any order.
//!
//! | action | product |
//! | --- | --- |
//! | `Begin` | `latest_lock.sql` and the comparison (`dispatch::newer::guard`); of a call, its lane |
//! | `Commit` | the settle transaction: effect, what was applied, outcome |
//! | `Keep` | only without [`Guard::OneTransaction`]: what was applied, in a transaction of its own |
//! | `Lose` | a call has its effect, and its answer is lost |
//! | `Probe` | the receiver says "applied" (`dispatch::reconcile`) |
//! | `Die` | a node dies: an open transaction is rolled back |

use stateright::{Model, Property};

use crate::small;

const EVENTS: usize = 2;
const NODES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Event {
    #[default]
    Ready,
    Leased,
    /// Its call has its effect, and nobody knows.
    Uncertain,
    Applied,
    Skipped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Node {
    #[default]
    Idle,
    /// It has this event and has read this version.
    Open(usize, u8),
    /// The effect is there, its version is not kept yet.
    Owes(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    events: [Event; EVENTS],
    nodes: [Node; NODES],
    /// What the object is, and what is on record for it; 0 is nothing.
    object: u8,
    latest: u8,
    deaths: u8,
    losses: u8,
    /// An older effect came over a newer one (ghost).
    went_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Begin(usize, usize),
    Commit(usize),
    Keep(usize),
    Lose(usize),
    Probe(usize),
    Die(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// What is older is skipped (`dispatch::newer::stale`).
    Comparison,
    /// One transaction per object at a time (`latest_lock.sql`; of calls, the lane).
    Lock,
    /// What was applied is kept with the effect (`Transitions::applied`).
    OneTransaction,
    /// So is what a probe says (`newer::keep_applied`).
    KeptThroughProbe,
}

#[derive(Debug, Clone, Copy)]
struct Newer {
    removed: Option<Guard>,
    calls: bool,
}

fn version(event: usize) -> u8 {
    u8::try_from(event).unwrap() + 1
}

impl Newer {
    fn has(self, guard: Guard) -> bool {
        self.removed != Some(guard)
    }

    fn is_free(self, state: &State) -> bool {
        let open = |node: &Node| matches!(node, Node::Open(..));
        !self.has(Guard::Lock)
            || !state.nodes.iter().any(open) && !state.events.contains(&Event::Uncertain)
    }
}

impl State {
    fn apply(&mut self, event: usize) {
        self.went_back |= version(event) < self.object;
        self.object = version(event);
    }
}

impl Model for Newer {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, node) in state.nodes.iter().enumerate() {
            match node {
                Node::Idle if self.is_free(state) => {
                    let ready = (0..EVENTS).filter(|event| state.events[*event] == Event::Ready);
                    actions.extend(ready.map(|event| Action::Begin(n, event)));
                }
                Node::Idle => {}
                Node::Open(..) => {
                    actions.push(Action::Commit(n));
                    if self.calls && state.losses == 0 {
                        actions.push(Action::Lose(n));
                    }
                }
                Node::Owes(_) => actions.push(Action::Keep(n)),
            }
            if *node != Node::Idle && state.deaths == 0 {
                actions.push(Action::Die(n));
            }
        }
        let uncertain = (0..EVENTS).filter(|event| state.events[*event] == Event::Uncertain);
        actions.extend(uncertain.map(Action::Probe));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let is_stale = |event, seen| self.has(Guard::Comparison) && version(event) < seen;
        match action {
            Action::Begin(node, event) => {
                state.events[event] = Event::Leased;
                state.nodes[node] = Node::Open(event, state.latest);
            }
            Action::Commit(node) => {
                let Node::Open(event, seen) = state.nodes[node] else {
                    return None;
                };
                state.nodes[node] = Node::Idle;
                if is_stale(event, seen) {
                    state.events[event] = Event::Skipped;
                } else {
                    state.apply(event);
                    state.events[event] = Event::Applied;
                    if self.has(Guard::OneTransaction) {
                        state.latest = version(event);
                    } else {
                        state.nodes[node] = Node::Owes(event);
                    }
                }
            }
            Action::Keep(node) => {
                let Node::Owes(event) = state.nodes[node] else {
                    return None;
                };
                state.nodes[node] = Node::Idle;
                state.latest = version(event);
            }
            Action::Lose(node) => {
                let Node::Open(event, seen) = state.nodes[node] else {
                    return None;
                };
                if is_stale(event, seen) {
                    return None;
                }
                state.losses += 1;
                state.apply(event);
                state.events[event] = Event::Uncertain;
                state.nodes[node] = Node::Idle;
            }
            Action::Probe(event) => {
                state.events[event] = Event::Applied;
                if self.has(Guard::KeptThroughProbe) {
                    state.latest = version(event);
                }
            }
            Action::Die(node) => {
                state.deaths += 1;
                if let Node::Open(event, _) = state.nodes[node] {
                    state.events[event] = Event::Ready;
                }
                state.nodes[node] = Node::Idle;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("the object never goes back", |_, state: &State| {
                !state.went_back
            }),
            Property::always("rest means done", |world: &Newer, state: &State| {
                let mut actions = Vec::new();
                world.actions(state, &mut actions);
                let ended = |event: &Event| matches!(event, Event::Applied | Event::Skipped);
                !actions.is_empty() || state.events.iter().all(ended) && state.object == 2
            }),
            Property::sometimes("an older one is skipped", |_, state: &State| {
                state.events.contains(&Event::Skipped)
            }),
            Property::sometimes("both are applied", |_, state: &State| {
                state.events == [Event::Applied; EVENTS]
            }),
        ];
        if self.calls {
            properties.push(Property::sometimes(
                "a probe ends one",
                |_, state: &State| state.losses > 0 && !state.events.contains(&Event::Uncertain),
            ));
        }
        properties
    }
}

#[test]
fn an_object_never_goes_back_to_an_older_state() {
    for calls in [false, true] {
        small::holds(
            "newer",
            Newer {
                removed: None,
                calls,
            },
        );
    }
}

#[test]
fn no_guard_of_apply_if_newer_is_decoration() {
    for (guard, calls) in [
        (Guard::Comparison, false),
        (Guard::Lock, false),
        (Guard::OneTransaction, false),
        (Guard::KeptThroughProbe, true),
    ] {
        let world = Newer {
            removed: Some(guard),
            calls,
        };
        small::breaks(world, "the object never goes back");
    }
}
