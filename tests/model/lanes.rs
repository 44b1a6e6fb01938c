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
//! | `NotYet` | the head answers that its time has not come: `delivery_not_yet.sql`, then as an end does |
//! | `Comes` | its time comes, whether somebody holds its row or not |
//! | `See`, `Give`, `Lock`, `Update` | a look that finds such a head: `lane_give_way.sql`, then `lane_promote.sql`, one transaction |
//! | `Mend` | `lane_headless.sql`, twice, then a look |

use stateright::{Model, Property};

mod worlds;

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
    /// The head, though its time has not come.
    Waits,
    /// Blocked, and its time has not come.
    Aside,
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
    /// Its snapshot has a head that waits for its time, and another that could run.
    SeenWaiting,
    /// It has put that head back, and not committed.
    Gave(usize),
    /// The same, and it holds the lock of the next one.
    GaveLocked(usize, usize),
}

impl Look {
    /// Whether it holds the lock of this row.
    fn holds(self, row: usize) -> bool {
        match self {
            Self::Locked(one) | Self::Gave(one) => one == row,
            Self::GaveLocked(one, other) => one == row || other == row,
            Self::None | Self::Owed | Self::Seen | Self::SeenWaiting => false,
        }
    }
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    rows: [Row; ROWS],
    /// `lane_seq`, and how many were drawn.
    numbers: [u8; ROWS],
    drawn: u8,
    end: End,
    looks: [Look; LOOKS],
    deaths: u8,
    doubts: u8,
    /// The open transaction ends nothing: the head leaves the lane.
    leaves: bool,
    /// Nor does it here: the head waits for its time, behind the others.
    postpones: bool,
    postponed: u8,
    /// A look that was owed was forgotten (ghost).
    forgotten: bool,
    /// What has happened (ghost).
    late_head: bool,
    outrun: bool,
    mended: bool,
    /// One began while nobody knew of an earlier one that is to be waited for (ghost).
    overtook: bool,
    gave_way: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Insert(usize),
    CommitInsert(usize),
    Claim(usize),
    Doubt(usize),
    Decide(usize),
    NotYet,
    Comes(usize),
    Delete,
    Promote,
    CommitEnd,
    See(usize),
    Give(usize),
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
    /// A look puts a head back that waits for its time (`lane_give_way.sql`).
    GiveWay,
    /// Whatever can run is promoted before what waits for its time (`lane_promote.sql`).
    PassedOver,
    /// A head that waits while another could run is searched for, too (`lane_headless.sql`).
    MendWaiting,
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
    /// How many heads answer that their time has not come.
    not_yet: u8,
}

impl State {
    /// Whether a head that waits for its time keeps another waiting.
    fn stands_still(&self) -> bool {
        self.rows.contains(&Row::Waits) && self.rows.contains(&Row::Blocked)
    }

    fn is_held(&self, row: usize) -> bool {
        self.looks.iter().any(|look| look.holds(row))
    }

    fn draw(&mut self, row: usize) {
        self.drawn += 1;
        self.numbers[row] = self.drawn;
    }

    /// It becomes the head.
    fn promote(&mut self, row: usize) {
        self.rows[row] = match self.rows[row] {
            Row::Aside => Row::Waits,
            _ => Row::Ready,
        };
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

    /// What is outside of the lane may wait for a person, and what has to for its time.
    fn is_done(&self) -> bool {
        self.rows
            .iter()
            .all(|row| matches!(row, Row::Gone | Row::Out | Row::Waits | Row::Aside))
            && self.looks == [Look::None; LOOKS]
    }
}

impl Lane {
    fn has(self, guard: Guard) -> bool {
        self.removed != Some(guard)
    }

    /// What `lane_promote.sql` takes: of those that can run the first, else one that waits for its time. `Err`
    /// when a look holds it.
    fn next(self, state: &State) -> Option<Result<usize, ()>> {
        let first = |can: &dyn Fn(Row) -> bool| {
            let those = (0..ROWS).filter(|row| can(state.rows[*row]));
            those.min_by_key(|row| state.numbers[*row])
        };
        let waits = |row| matches!(row, Row::Blocked | Row::Aside);
        let row = if self.has(Guard::PassedOver) {
            first(&|row| row == Row::Blocked).or_else(|| first(&waits))?
        } else {
            first(&waits)?
        };
        Some(if state.is_held(row) { Err(()) } else { Ok(row) })
    }

    /// The same for the statement behind the end of a head, which sees that one waiting where it is put back.
    fn next_of_end(self, state: &State) -> Option<Result<usize, ()>> {
        let mut seen = state.clone();
        let head = state.rows.iter().position(|row| *row == Row::Leased);
        if let (true, Some(head)) = (state.postpones, head) {
            seen.draw(head);
            seen.rows[head] = Row::Aside;
        }
        self.next(&seen)
    }

    /// The same for a look, which sees what it has put back itself.
    fn next_of_look(self, state: &State, look: usize) -> Option<Result<usize, ()>> {
        let mut seen = state.clone();
        if let Look::Gave(head) = std::mem::take(&mut seen.looks[look]) {
            seen.rows[head] = Row::Aside;
        }
        self.next(&seen)
    }

    /// What a look finds.
    fn seen(self, state: &State) -> Look {
        if state.stands_still() && self.has(Guard::GiveWay) {
            Look::SeenWaiting
        } else if self.head(state).is_none() && self.next(state).is_some() {
            Look::Seen
        } else {
            Look::None
        }
    }

    fn head(self, state: &State) -> Option<usize> {
        state.rows.iter().position(|row| match row {
            Row::Ready | Row::Leased | Row::Waits => true,
            Row::Doubt => self.has(Guard::UncertainIsHead),
            _ => false,
        })
    }

    /// The write of a look, and its commit.
    fn update(self, state: &mut State, n: usize) {
        let (gave, row) = match state.looks[n] {
            Look::Locked(row) => (None, row),
            Look::GaveLocked(head, row) => (Some(head), row),
            _ => return,
        };
        let other = self.head(state).filter(|head| gave != Some(*head));
        if other.is_some() && self.has(Guard::UniqueHead) {
            state.outrun = true;
        } else {
            if let Some(head) = gave {
                state.gave_way = true;
                // Its time may have come meanwhile.
                state.rows[head] = match state.rows[head] {
                    Row::Waits => Row::Aside,
                    _ => Row::Blocked,
                };
            }
            state.promote(row);
            state.late_head = true;
        }
        state.looks[n] = Look::None;
    }

    /// The commit of the transaction that took the head away.
    fn commit_end(self, state: &mut State) {
        let head = state
            .rows
            .iter()
            .position(|row| *row == Row::Leased)
            .unwrap();
        state.rows[head] = if std::mem::take(&mut state.leaves) {
            Row::Out
        } else if std::mem::take(&mut state.postpones) {
            state.draw(head);
            Row::Aside
        } else {
            Row::Gone
        };
        if let End::Promoted(Some(next)) = state.end {
            state.promote(next);
        }
        state.end = End::None;
        if self.has(Guard::LookAfterEnd) {
            state.owe();
        }
    }

    fn may_doubt(self, state: &State) -> bool {
        self.on_uncertain.is_some() && state.doubts == 0 && state.end == End::None
    }

    fn looks(self, state: &State, actions: &mut Vec<Action>) {
        for (n, look) in state.looks.iter().enumerate() {
            match look {
                Look::None => continue,
                Look::Owed => actions.push(Action::See(n)),
                Look::SeenWaiting if self.head(state).is_some_and(|head| state.is_held(head)) => {}
                Look::SeenWaiting => actions.push(Action::Give(n)),
                Look::Seen | Look::Gave(_) if self.next_of_look(state, n) != Some(Err(())) => {
                    actions.push(Action::Lock(n));
                }
                Look::Seen => {}
                // What it wants is another look's.
                Look::Gave(_) => actions.push(Action::GiveUp(n)),
                // An end that is open has deleted the head: the index makes its successor wait.
                Look::Locked(_) if state.end != End::None && self.has(Guard::UniqueHead) => {
                    if self.has(Guard::ShortWait) {
                        actions.push(Action::GiveUp(n));
                    }
                }
                Look::Locked(_) | Look::GaveLocked(..) => actions.push(Action::Update(n)),
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
                // Claims pass over what is locked.
                Row::Ready if !state.is_held(n) => actions.push(Action::Claim(n)),
                Row::Waits | Row::Aside => actions.push(Action::Comes(n)),
                Row::Leased if self.may_doubt(state) => actions.push(Action::Doubt(n)),
                Row::Doubt | Row::Out => actions.push(Action::Decide(n)),
                _ => {}
            }
        }
        match state.end {
            End::None if state.rows.contains(&Row::Leased) => actions.push(Action::Delete),
            // A look that holds the row is waited for.
            End::Deleted if self.next_of_end(state) != Some(Err(())) => {
                actions.push(Action::Promote);
            }
            End::None | End::Deleted => {}
            End::Promoted(_) => actions.push(Action::CommitEnd),
        }
        if state.end == End::None
            && state.rows.contains(&Row::Leased)
            && state.postponed < self.not_yet
        {
            actions.push(Action::NotYet);
        }
        if state.end != End::None && state.deaths < self.deaths {
            actions.push(Action::EndDies);
        }
        self.looks(state, actions);
        let headless = self.head(state).is_none() && self.next(state).is_some();
        let waits = state.stands_still() && self.has(Guard::MendWaiting);
        if self.has(Guard::Mend) && state.forgotten && (headless || waits) {
            actions.push(Action::Mend);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Insert(n) => {
                state.rows[n] = Row::Open;
                state.draw(n);
            }
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
            Action::NotYet => {
                state.postponed += 1;
                state.postpones = true;
                state.end = End::Deleted;
            }
            Action::Comes(n) if state.rows[n] == Row::Waits => state.rows[n] = Row::Ready,
            Action::Comes(n) => state.rows[n] = Row::Blocked,
            Action::Promote => {
                state.end = End::Promoted(self.next_of_end(&state).and_then(Result::ok));
            }
            Action::CommitEnd => self.commit_end(&mut state),
            Action::See(n) => {
                // What an open transaction has deleted is still there for others.
                state.looks[n] = self.seen(&state);
            }
            // Under the lock it is looked at once more, and then as if it had been found so at once.
            Action::Give(n) => {
                let waiting = state.rows.iter().position(|row| *row == Row::Waits);
                state.looks[n] = match waiting {
                    Some(head) => Look::Gave(head),
                    None => self.seen(&state),
                };
            }
            // The row that it waited for may be another's head by now: the next one that waits.
            Action::Lock(n) => {
                state.looks[n] = match (self.next_of_look(&state, n), state.looks[n]) {
                    (Some(Ok(row)), Look::Gave(head)) => Look::GaveLocked(head, row),
                    (Some(Ok(row)), _) => Look::Locked(row),
                    _ => Look::None,
                };
            }
            Action::Update(n) => self.update(&mut state, n),
            Action::GiveUp(n) => {
                state.looks[n] = Look::None;
                state.owe();
            }
            Action::EndDies => {
                state.deaths += 1;
                state.end = End::None;
                state.leaves = false;
                state.postpones = false;
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
                let heads =
                    |row: &&Row| matches!(row, Row::Ready | Row::Leased | Row::Waits | Row::Doubt);
                state.rows.iter().filter(heads).count() <= 1
            }),
            Property::always("rest means done", |lane: &Lane, state: &State| {
                let mut actions = Vec::new();
                lane.actions(state, &mut actions);
                let people = lane.on_uncertain == Some(OnUncertain::Skip);
                let optional = |action: &Action| match action {
                    // Nobody waits for the time of one that waits for its own.
                    Action::EndDies | Action::LookDies(_) | Action::Comes(_) => true,
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
            Property::sometimes("all is done", |_, state: &State| {
                state.is_done()
                    && state
                        .rows
                        .iter()
                        .all(|row| matches!(row, Row::Gone | Row::Out))
            }),
        ];
        if self.not_yet > 0 {
            properties.push(Property::sometimes(
                "a head gives way",
                |_, state: &State| state.gave_way,
            ));
            properties.push(Property::sometimes(
                "all others are done before its time comes",
                |_, state: &State| state.is_done() && state.rows.contains(&Row::Waits),
            ));
        }
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
