//! Receiving: from a request to its answer.
//!
//! | action | product |
//! | --- | --- |
//! | `Take` | `ingest::queue`: a writer takes what is waiting; BEGIN |
//! | `Insert` | one key of `ingest_reserve.sql`: it wins, loses, or waits for another's transaction |
//! | `ReadLosers` | `ingest_known.sql`, then `ingest::judge` |
//! | `Commit` | `ingest_receipts.sql`, `ingest_conflicts.sql`, COMMIT, the answer |
//! | `AnswerEarly` | what `Guard::AnswerAfterCommit` prevents |

use crate::guards::Guard;
use crate::model::{Action, Core, End, Mark};
use crate::scope::Replication;
use crate::state::{Acknowledged, At, Delivery, Fate, Live, Row, Stage, State, Writer};

/// Tries of a batch, `ingest::batch::TRIES` made small.
const TRIES: u8 = 2;

pub(crate) fn actions(core: &Core, state: &State, actions: &mut Vec<Action>) {
    if core.scope.requests.is_empty() {
        return;
    }
    takes(core, state, actions);
    for writer in 0..state.writers.len() {
        match state.writers[writer].stage {
            Stage::Idle => continue,
            Stage::Reserving(_) => {
                if blocked_by(core, state, writer).is_none() {
                    actions.push(Action::Insert { writer });
                }
            }
            Stage::Reading => actions.push(Action::ReadLosers { writer }),
            Stage::Ready => commits(core, state, writer, actions),
        }
        if state.spent.deaths < core.scope.bounds.deaths {
            actions.push(Action::ServerDies { writer });
        }
    }
}

fn takes(core: &Core, state: &State, actions: &mut Vec<Action>) {
    let Some(writer) = state.writers.iter().position(|w| w.stage == Stage::Idle) else {
        return;
    };
    let waiting = |n: &usize| state.copies[*n].at == At::Sender;
    for first in (0..core.scope.requests.len()).filter(waiting) {
        actions.push(Action::Take {
            writer,
            first,
            then: None,
        });
        for second in (0..core.scope.requests.len()).filter(waiting) {
            let sorted = core.scope.requests[first].0 <= core.scope.requests[second].0;
            if first != second && (sorted || !core.has(Guard::SortedKeys)) {
                actions.push(Action::Take {
                    writer,
                    first,
                    then: Some(second),
                });
            }
        }
    }
}

fn commits(core: &Core, state: &State, writer: usize, actions: &mut Vec<Action>) {
    actions.push(Action::Commit {
        writer,
        end: End::Answered,
    });
    if !core.has(Guard::AnswerAfterCommit) {
        actions.push(Action::AnswerEarly { writer });
    }
    if state.spent.cuts < core.scope.bounds.cuts {
        for end in [End::AnswerLost, End::ReplyLost, End::RolledBack] {
            actions.push(Action::Commit { writer, end });
        }
        if core.scope.replication == Replication::Synchronous {
            for end in [End::Warned, End::Unreplicated] {
                actions.push(Action::Commit { writer, end });
            }
        }
    }
}

/// The writer whose uncommitted key this one's next insert waits for.
pub(crate) fn blocked_by(core: &Core, state: &State, writer: usize) -> Option<usize> {
    let this = &state.writers[writer];
    let Stage::Reserving(item) = this.stage else {
        return None;
    };
    let key = core.key_of(this.batch[usize::from(item)]);
    core.has(Guard::UniqueKey).then_some(())?;
    (0..state.writers.len()).find(|other| {
        let theirs = &state.writers[*other];
        *other != writer
            && (0..usize::from(theirs.items))
                .any(|n| theirs.fates[n] == Fate::New && core.key_of(theirs.batch[n]) == key)
    })
}

pub(crate) fn take(
    core: &Core,
    state: &mut State,
    writer: usize,
    first: usize,
    then: Option<usize>,
) {
    let mut batch = [0; 2];
    let mut items = 0;
    for request in [Some(first), then].into_iter().flatten() {
        batch[items] = u8::try_from(request).unwrap();
        items += 1;
        state.copies[request].at = At::Writer;
    }
    state.writers[writer] = Writer {
        batch,
        items: u8::try_from(items).unwrap(),
        ..Writer::default()
    };
    begin(core, state, writer);
}

fn begin(core: &Core, state: &mut State, writer: usize) {
    let snapshot = (0..core.scope.keys())
        .filter(|key| state.db.rows[*key].events > 0)
        .fold(0, |bits, key| bits | 1 << key);
    let this = &mut state.writers[writer];
    this.stage = Stage::Reserving(0);
    this.fates = Default::default();
    // Only what goes wrong without the second statement depends on it.
    this.snapshot = if core.has(Guard::SecondStatement) {
        0
    } else {
        snapshot
    };
}

pub(crate) fn insert(core: &Core, state: &mut State, writer: usize) {
    let this = &mut state.writers[writer];
    let Stage::Reserving(item) = this.stage else {
        return;
    };
    let item = usize::from(item);
    let key = core.key_of(this.batch[item]);
    let known = state.db.rows[key].events > 0
        || (0..item).any(|n| this.fates[n] == Fate::New && core.key_of(this.batch[n]) == key);
    this.fates[item] = if known && core.has(Guard::UniqueKey) {
        Fate::Lost
    } else {
        Fate::New
    };
    let next = u8::try_from(item + 1).unwrap();
    this.stage = if next < this.items {
        Stage::Reserving(next)
    } else if this.fates.contains(&Fate::Lost) {
        Stage::Reading
    } else {
        Stage::Ready
    };
}

pub(crate) fn read_losers(core: &Core, state: &mut State, writer: usize) {
    let mut this = state.writers[writer];
    for item in 0..usize::from(this.items) {
        if this.fates[item] != Fate::Lost {
            continue;
        }
        let key = core.key_of(this.batch[item]);
        let own = (0..item)
            .find(|n| this.fates[*n] == Fate::New && core.key_of(this.batch[*n]) == key)
            .map(|n| core.content_of(this.batch[n]));
        let row = &state.db.rows[key];
        let visible =
            row.events > 0 && (core.has(Guard::SecondStatement) || this.snapshot & (1 << key) != 0);
        let Some(first) = own.or(visible.then_some(row.content)) else {
            state.broken.abort = true;
            again(core, state, writer);
            return;
        };
        let equal =
            first == core.content_of(this.batch[item]) || !core.has(Guard::DigestComparison);
        this.fates[item] = if equal {
            Fate::Duplicate
        } else {
            Fate::Conflict
        };
    }
    this.stage = Stage::Ready;
    state.writers[writer] = this;
}

pub(crate) fn answer_early(core: &Core, state: &mut State, writer: usize) {
    let this = state.writers[writer];
    for (request, fate) in items(&this) {
        core.mark(Mark::AnsweredEarly);
        state.copies[request].acknowledged = acknowledged(fate);
    }
}

pub(crate) fn commit(core: &Core, state: &mut State, writer: usize, end: End) {
    let this = state.writers[writer];
    state.spent.cuts += u8::from(end != End::Answered);
    if end != End::RolledBack {
        let mut wrote = false;
        for (request, fate) in items(&this) {
            wrote |= write(core, state, request, fate);
        }
        if wrote && !matches!(end, End::Warned | End::Unreplicated) {
            core.commit(state);
        }
    }
    match end {
        End::Answered => answer(state, writer, At::Done),
        End::AnswerLost => answer(state, writer, At::Sender),
        End::Warned if !core.has(Guard::WarningIsNotDurable) => {
            answer(state, writer, At::Done);
        }
        End::Warned => {
            core.mark(Mark::Warned);
            refuse(state, writer);
        }
        End::ReplyLost | End::Unreplicated | End::RolledBack | End::StillOpen => {
            core.mark(if end == End::RolledBack {
                Mark::CutRolledBack
            } else {
                Mark::CutCommitted
            });
            again(core, state, writer);
        }
    }
}

/// What an item writes; whether it writes at all.
fn write(core: &Core, state: &mut State, request: usize, fate: Fate) -> bool {
    let (key, content) = core.scope.requests[request];
    let row = &mut state.db.rows[usize::from(key)];
    match fate {
        Fate::New if row.events > 0 => row.events += 1,
        Fate::New => {
            state.ids += 1;
            if usize::from(state.ids) > core.scope.keys() {
                core.mark(Mark::StoredAgain);
            }
            *row = Row {
                events: 1,
                id: state.ids,
                content,
                payload: true,
                delivery: Delivery {
                    live: Live::Ready,
                    run: 1,
                    ..Delivery::default()
                },
                ..Row::default()
            };
        }
        Fate::Conflict => {
            core.mark(Mark::ConflictRecorded);
            row.conflicts |= 1 << content;
        }
        Fate::Duplicate => {
            core.mark(Mark::DuplicateSuppressed);
            return core.has(Guard::DuplicateReceipt);
        }
        Fate::Unknown | Fate::Lost => return false,
    }
    true
}

fn items(writer: &Writer) -> impl Iterator<Item = (usize, Fate)> {
    let writer = *writer;
    (0..usize::from(writer.items)).map(move |n| (usize::from(writer.batch[n]), writer.fates[n]))
}

fn acknowledged(fate: Fate) -> Acknowledged {
    if fate == Fate::Conflict {
        Acknowledged::Conflict
    } else {
        Acknowledged::Stored
    }
}

fn answer(state: &mut State, writer: usize, at: At) {
    let this = std::mem::take(&mut state.writers[writer]);
    for (request, fate) in items(&this) {
        state.copies[request].at = at;
        state.copies[request].acknowledged = acknowledged(fate);
    }
}

/// 503, or the connection to the sender is gone: it sends again.
pub(crate) fn refuse(state: &mut State, writer: usize) {
    let this = std::mem::take(&mut state.writers[writer]);
    for (request, _) in items(&this) {
        state.copies[request].at = At::Sender;
    }
}

/// The connection broke: the batch is written once more, or everybody in it gets 503.
pub(crate) fn again(core: &Core, state: &mut State, writer: usize) {
    state.writers[writer].tries += 1;
    if state.writers[writer].tries < TRIES {
        begin(core, state, writer);
    } else {
        refuse(state, writer);
    }
}
