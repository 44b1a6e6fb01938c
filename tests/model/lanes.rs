//! One lane: inserts, ends and the looks behind their commits, statement by statement.
//!
//! A world of its own beside the core's, since what goes wrong here lies between the statements of
//! few transactions and not in the life of a delivery.
//!
//! | action | product |
//! | --- | --- |
//! | `Insert`, `CommitInsert` | `ingest_reserve.sql`: blocked, whatever else is in the lane |
//! | `Claim` | `delivery_claim.sql`: the head |
//! | `Delete`, `Promote`, `CommitEnd` | a settle transaction: `delivery_finish.sql`, then `lane_promote.sql` |
//! | `See`, `Lock`, `Update` | `lane_promote.sql` after a commit: its snapshot, its row lock, its write and commit |
//! | `GiveUp` | its lock time-out: it is put off |
//! | `Die` | a node dies: an open transaction is rolled back, a look that is owed is forgotten |
//! | `Doubt` | the result of the head's call is not known (`delivery_uncertain.sql`); with `skip` it leaves the lane as an end does |
//! | `Decide` | a probe or a person: with `wait`, the next end may follow; with `skip`, nobody counts upon it |
//! | `Mend` | `lane_headless.sql`, twice, then a look |

use stateright::{Model, Property};

use crate::small;

/// Deliveries of the lane, in the order of their numbers.
const ROWS: usize = 3;
/// Looks at once.
const LOOKS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Row {
    #[default]
    None,
    /// Inserted, not committed.
    Open,
    Blocked,
    Ready,
    Leased,
    /// Nobody knows whether its call was applied; still in the lane.
    Doubt,
    /// The same, outside the lane.
    Out,
    Gone,
}

/// The transaction that ends the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum End {
    #[default]
    None,
    /// The head is deleted.
    Deleted,
    /// The next statement has run: the row that it promoted.
    Promoted(Option<usize>),
}

/// A look at the lane behind a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
enum Look {
    #[default]
    None,
    /// Waits for its turn.
    Owed,
    /// Its snapshot has no head.
    Seen,
    /// It holds the lock of a blocked row.
    Locked(usize),
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    rows: [Row; ROWS],
    end: End,
    looks: [Look; LOOKS],
    deaths: u8,
    doubts: u8,
    /// The open transaction ends nothing: the head leaves the lane.
    leaves: bool,
    /// A look that was owed was forgotten (ghost).
    forgotten: bool,
    /// What has happened (ghost).
    late_head: bool,
    outrun: bool,
    mended: bool,
    /// One began while nobody knew of an earlier one that is to be waited for (ghost).
    overtook: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Insert(usize),
    CommitInsert(usize),
    Claim(usize),
    Doubt(usize),
    Decide(usize),
    Delete,
    Promote,
    CommitEnd,
    See(usize),
    Lock(usize),
    Update(usize),
    GiveUp(usize),
    EndDies,
    LookDies(usize),
    Mend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// An insert looks at its lane after its commit (`ingest::batch::once`).
    LookAfterInsert,
    /// An end looks at its lane after its commit (`dispatch::work`).
    LookAfterEnd,
    /// `delivery_one_head`.
    UniqueHead,
    /// Lanes without a head are searched for (`engine::background::mend_lanes`).
    Mend,
    /// A look does not wait longer than for a moment (`store::lanes::LOCK`).
    ShortWait,
    /// An uncertain head is a head, for `lane_promote.sql` and `delivery_one_head`.
    UncertainIsHead,
    /// With `skip` it leaves its lane (`settle::left_lane`).
    LeavesLane,
}

/// `lane_on_uncertain` of a handler whose calls can be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnUncertain {
    Wait,
    Skip,
}

#[derive(Debug, Clone, Copy)]
struct Lane {
    removed: Option<Guard>,
    deaths: u8,
    on_uncertain: Option<OnUncertain>,
}

impl State {
    /// The lowest that waits and that no look holds; `Err` when a look holds it.
    fn lowest(&self) -> Option<Result<usize, ()>> {
        let row = self.rows.iter().position(|row| *row == Row::Blocked)?;
        Some(if self.looks.contains(&Look::Locked(row)) {
            Err(())
        } else {
            Ok(row)
        })
    }

    fn owe(&mut self) {
        // One that waits already sees this commit too.
        if self.looks.contains(&Look::Owed) {
            return;
        }
        *self
            .looks
            .iter_mut()
            .find(|look| **look == Look::None)
            .unwrap() = Look::Owed;
        self.looks.sort_unstable();
    }

    /// What is outside of the lane may wait for a person.
    fn is_done(&self) -> bool {
        self.rows
            .iter()
            .all(|row| matches!(row, Row::Gone | Row::Out))
            && self.looks == [Look::None; LOOKS]
    }
}

impl Lane {
    fn has(self, guard: Guard) -> bool {
        self.removed != Some(guard)
    }

    fn head(self, state: &State) -> Option<usize> {
        state.rows.iter().position(|row| match row {
            Row::Ready | Row::Leased => true,
            Row::Doubt => self.has(Guard::UncertainIsHead),
            _ => false,
        })
    }

    fn may_doubt(self, state: &State) -> bool {
        self.on_uncertain.is_some() && state.doubts == 0 && state.end == End::None
    }

    fn looks(self, state: &State, actions: &mut Vec<Action>) {
        for (n, look) in state.looks.iter().enumerate() {
            match look {
                Look::None => continue,
                Look::Owed => actions.push(Action::See(n)),
                Look::Seen if state.lowest() != Some(Err(())) => actions.push(Action::Lock(n)),
                Look::Seen => {}
                // An end that is open has deleted the head: the index makes its successor wait.
                Look::Locked(_) if state.end != End::None && self.has(Guard::UniqueHead) => {
                    if self.has(Guard::ShortWait) {
                        actions.push(Action::GiveUp(n));
                    }
                }
                Look::Locked(_) => actions.push(Action::Update(n)),
            }
            if state.deaths < self.deaths {
                actions.push(Action::LookDies(n));
            }
        }
    }
}

impl Model for Lane {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, row) in state.rows.iter().enumerate() {
            match row {
                // Numbers are drawn in order; commits come in any.
                Row::None if n == 0 || state.rows[n - 1] != Row::None => {
                    actions.push(Action::Insert(n));
                }
                Row::Open => actions.push(Action::CommitInsert(n)),
                Row::Ready => actions.push(Action::Claim(n)),
                Row::Leased if self.may_doubt(state) => actions.push(Action::Doubt(n)),
                Row::Doubt | Row::Out => actions.push(Action::Decide(n)),
                _ => {}
            }
        }
        match state.end {
            End::None if state.rows.contains(&Row::Leased) => actions.push(Action::Delete),
            // A look that holds the row is waited for.
            End::Deleted if state.lowest() != Some(Err(())) => actions.push(Action::Promote),
            End::None | End::Deleted => {}
            End::Promoted(_) => actions.push(Action::CommitEnd),
        }
        if state.end != End::None && state.deaths < self.deaths {
            actions.push(Action::EndDies);
        }
        self.looks(state, actions);
        if self.has(Guard::Mend)
            && state.forgotten
            && self.head(state).is_none()
            && state.lowest().is_some()
        {
            actions.push(Action::Mend);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Insert(n) => state.rows[n] = Row::Open,
            Action::CommitInsert(n) => {
                state.rows[n] = Row::Blocked;
                if self.has(Guard::LookAfterInsert) {
                    state.owe();
                }
            }
            Action::Claim(n) => {
                state.overtook |= state.rows.contains(&Row::Doubt);
                state.rows[n] = Row::Leased;
            }
            Action::Doubt(n) => {
                state.doubts += 1;
                let skips = self.on_uncertain == Some(OnUncertain::Skip);
                if skips && self.has(Guard::LeavesLane) {
                    state.leaves = true;
                    state.end = End::Deleted;
                } else {
                    state.rows[n] = Row::Doubt;
                }
            }
            // As one that a probe found absent: sent again, in its place.
            Action::Decide(n) if state.rows[n] == Row::Doubt => state.rows[n] = Row::Leased,
            Action::Decide(n) => state.rows[n] = Row::Gone,
            Action::Delete => state.end = End::Deleted,
            Action::Promote => state.end = End::Promoted(state.lowest().and_then(Result::ok)),
            Action::CommitEnd => {
                let head = state.rows.iter().position(|row| *row == Row::Leased)?;
                state.rows[head] = if std::mem::take(&mut state.leaves) {
                    Row::Out
                } else {
                    Row::Gone
                };
                if let End::Promoted(Some(next)) = state.end {
                    state.rows[next] = Row::Ready;
                }
                state.end = End::None;
                if self.has(Guard::LookAfterEnd) {
                    state.owe();
                }
            }
            Action::See(n) => {
                // What an open transaction has deleted is still there for others.
                let seen = self.head(&state).is_none() && state.lowest().is_some();
                state.looks[n] = if seen { Look::Seen } else { Look::None };
            }
            // The row that it waited for may be another's head by now: the next one that waits.
            Action::Lock(n) => {
                state.looks[n] = match state.lowest() {
                    Some(Ok(row)) => Look::Locked(row),
                    _ => Look::None,
                };
            }
            Action::Update(n) => {
                let Look::Locked(row) = state.looks[n] else {
                    return None;
                };
                if self.head(&state).is_some() && self.has(Guard::UniqueHead) {
                    state.outrun = true;
                } else {
                    state.rows[row] = Row::Ready;
                    state.late_head = true;
                }
                state.looks[n] = Look::None;
            }
            Action::GiveUp(n) => {
                state.looks[n] = Look::None;
                state.owe();
            }
            Action::EndDies => {
                state.deaths += 1;
                state.end = End::None;
                state.leaves = false;
            }
            Action::LookDies(n) => {
                state.deaths += 1;
                state.forgotten = true;
                state.looks[n] = Look::None;
            }
            Action::Mend => {
                state.mended = true;
                state.forgotten = false;
                state.owe();
            }
        }
        state.looks.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("one head per lane", |_, state: &State| {
                let heads = |row: &&Row| matches!(row, Row::Ready | Row::Leased | Row::Doubt);
                state.rows.iter().filter(heads).count() <= 1
            }),
            Property::always("rest means done", |lane: &Lane, state: &State| {
                let mut actions = Vec::new();
                lane.actions(state, &mut actions);
                let people = lane.on_uncertain == Some(OnUncertain::Skip);
                let optional = |action: &Action| match action {
                    Action::EndDies | Action::LookDies(_) => true,
                    Action::Decide(_) => people,
                    _ => false,
                };
                state.is_done() || !actions.iter().all(optional)
            }),
            Property::always(
                "nobody overtakes one of which nobody knows",
                |_, state: &State| !state.overtook,
            ),
            Property::sometimes("a look makes a head", |_, state: &State| state.late_head),
            Property::sometimes("a look comes second", |_, state: &State| state.outrun),
            Property::sometimes("all is done", |_, state: &State| state.is_done()),
        ];
        if self.deaths > 0 {
            properties.push(Property::sometimes(
                "a lane is mended",
                |_, state: &State| state.mended,
            ));
        }
        if self.on_uncertain == Some(OnUncertain::Skip) {
            properties.push(Property::sometimes(
                "all others are done before it is known",
                |_, state: &State| state.is_done() && state.rows.contains(&Row::Out),
            ));
        }
        properties
    }
}

const LANE: Lane = Lane {
    removed: None,
    deaths: 0,
    on_uncertain: None,
};

#[test]
fn a_lane_never_has_two_heads_and_never_gets_stuck() {
    for deaths in 0..=2 {
        small::holds("lanes", Lane { deaths, ..LANE });
    }
}

#[test]
fn a_lane_waits_for_an_uncertain_head_or_goes_on_without_it() {
    for on_uncertain in [OnUncertain::Wait, OnUncertain::Skip] {
        for deaths in 0..=1 {
            let on_uncertain = Some(on_uncertain);
            small::holds(
                "lanes",
                Lane {
                    deaths,
                    on_uncertain,
                    ..LANE
                },
            );
        }
    }
}

#[test]
fn no_guard_of_a_lane_is_decoration() {
    const OVERTAKES: &str = "nobody overtakes one of which nobody knows";
    let (wait, skip) = (Some(OnUncertain::Wait), Some(OnUncertain::Skip));
    for (guard, deaths, on_uncertain, property) in [
        (Guard::LookAfterInsert, 0, None, "rest means done"),
        (Guard::LookAfterEnd, 0, None, "rest means done"),
        (Guard::UniqueHead, 0, None, "one head per lane"),
        (Guard::ShortWait, 0, None, "rest means done"),
        (Guard::Mend, 1, None, "rest means done"),
        (Guard::UncertainIsHead, 0, wait, OVERTAKES),
        (Guard::LeavesLane, 0, skip, "rest means done"),
        (Guard::LookAfterEnd, 0, skip, "rest means done"),
    ] {
        let world = Lane {
            removed: Some(guard),
            deaths,
            on_uncertain,
        };
        small::breaks(world, property);
    }
}
