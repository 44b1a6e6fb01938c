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
//! | `Mend` | `lane_headless.sql`, twice, then a look |

use stateright::{Checker as _, Expectation, HasDiscoveries, Model, Property};

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
    /// A look that was owed was forgotten (ghost).
    forgotten: bool,
    /// What has happened (ghost).
    late_head: bool,
    outrun: bool,
    mended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Insert(usize),
    CommitInsert(usize),
    Claim(usize),
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
}

#[derive(Debug, Clone, Copy)]
struct Lane {
    removed: Option<Guard>,
    deaths: u8,
}

impl State {
    fn head(&self) -> Option<usize> {
        self.rows
            .iter()
            .position(|row| matches!(row, Row::Ready | Row::Leased))
    }

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

    fn is_done(&self) -> bool {
        self.rows.iter().all(|row| *row == Row::Gone) && self.looks == [Look::None; LOOKS]
    }
}

impl Lane {
    fn has(self, guard: Guard) -> bool {
        self.removed != Some(guard)
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
            && state.head().is_none()
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
            Action::Claim(n) => state.rows[n] = Row::Leased,
            Action::Delete => state.end = End::Deleted,
            Action::Promote => state.end = End::Promoted(state.lowest().and_then(Result::ok)),
            Action::CommitEnd => {
                let head = state.rows.iter().position(|row| *row == Row::Leased)?;
                state.rows[head] = Row::Gone;
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
                let seen = state.head().is_none() && state.lowest().is_some();
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
                if state.head().is_some() && self.has(Guard::UniqueHead) {
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
                let heads = |row: &&Row| matches!(row, Row::Ready | Row::Leased);
                state.rows.iter().filter(heads).count() <= 1
            }),
            Property::always("rest means done", |lane: &Lane, state: &State| {
                let mut actions = Vec::new();
                lane.actions(state, &mut actions);
                let optional =
                    |action: &Action| matches!(action, Action::EndDies | Action::LookDies(_));
                state.is_done() || !actions.iter().all(optional)
            }),
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
        properties
    }
}

/// Explores all of it: what is broken, what was not reached, how many states there are.
fn explore(lane: Lane) -> (Vec<&'static str>, Vec<&'static str>, usize) {
    let checker = lane
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .threads(1)
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let (mut broken, mut missed) = (Vec::new(), Vec::new());
    for property in lane.properties() {
        match (property.expectation, found.get(property.name)) {
            (Expectation::Sometimes, None) => missed.push(property.name),
            (Expectation::Always, Some(path)) => {
                eprintln!(
                    "{} without {:?}: {:?}",
                    property.name,
                    lane.removed,
                    path.clone().into_actions()
                );
                broken.push(property.name);
            }
            _ => {}
        }
    }
    (broken, missed, checker.unique_state_count())
}

#[test]
fn a_lane_never_has_two_heads_and_never_gets_stuck() {
    for deaths in 0..=2 {
        let (broken, missed, states) = explore(Lane {
            removed: None,
            deaths,
        });
        eprintln!("lanes, {deaths} deaths: {states} states");
        assert_eq!((broken, missed), (vec![], vec![]), "{deaths} deaths");
    }
}

#[test]
fn no_guard_of_a_lane_is_decoration() {
    for (guard, deaths, breaks) in [
        (Guard::LookAfterInsert, 0, "rest means done"),
        (Guard::LookAfterEnd, 0, "rest means done"),
        (Guard::UniqueHead, 0, "one head per lane"),
        (Guard::ShortWait, 0, "rest means done"),
        (Guard::Mend, 1, "rest means done"),
    ] {
        let (broken, _, _) = explore(Lane {
            removed: Some(guard),
            deaths,
        });
        assert!(broken.contains(&breaks), "without {guard:?} nothing breaks");
    }
}
