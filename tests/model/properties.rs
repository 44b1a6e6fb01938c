//! What must hold in every state, and what must be reached.

use stateright::{Model as _, Property};

use crate::ingest::blocked_by;
use crate::model::{Core, Mark};
use crate::scope::{Kind, Replication, Scope};
use crate::state::{At, Ending, Live, Phase, Row, Stage, State};
use crate::uncertain;
use crate::world::{is_stored, slots};

/// `always`, numbered, so that only the first counterexample is kept.
macro_rules! always {
    ($($number:literal $name:literal $holds:expr;)*) => {
        vec![$(Property::always($name, |core: &Core, state: &State| {
            let holds: fn(&Core, &State) -> bool = $holds;
            core.first($number, holds(core, state))
        })),*]
    };
}

macro_rules! sometimes {
    ($($mark:ident $name:literal;)*) => {
        [$((Mark::$mark, Property::sometimes($name, |core: &Core, _: &State| core.reached(Mark::$mark)))),*]
    };
}

pub(crate) fn of(scope: &Scope) -> Vec<Property<Core>> {
    let mut properties = always! {
        0 "what was acknowledged is stored" |core, state| {
            (0..core.scope.requests.len()).all(|request| is_stored(core, state, request))
        };
        1 "one event per key" |_, state| state.db.rows.iter().all(|row| row.events <= 1);
        2 "no deadlock" |core, state| {
            !(0..state.writers.len()).any(|this| {
                blocked_by(core, state, this).is_some_and(|other| blocked_by(core, state, other) == Some(this))
            })
        };
        3 "no batch is thrown back without a fault" |_, state| !state.broken.abort;
        4 "the first content stays, others are never run" |_, state| {
            state.db.rows.iter().all(|row| row.conflicts & (1 << row.content) == 0)
        };
        5 "one outcome per run" |_, state| {
            state.db.rows.iter().all(|row| row.outcome_rows.iter().all(|rows| *rows <= 1))
        };
        6 "one effect per successful run" |core, state| {
            (0..core.scope.keys()).all(|key| {
                let row = &state.db.rows[key];
                core.scope.kinds[key] != Kind::Transactional
                    || row.effects.iter().zip(row.outcomes).all(|(effects, outcome)| {
                        *effects == u8::from(outcome == Ending::Succeeded)
                            // Committed on its own, an effect comes before its outcome.
                            || (!core.has(crate::guards::Guard::OneTransaction) && *effects == 1 && outcome == Ending::None)
                    })
            })
        };
        7 "the newest run is live or finished" |_, state| {
            state.db.rows.iter().all(|row| row.events == 0 || row.delivery.live != Live::None || last_run(row) > 0)
        };
        8 "no delivery of a finished run" |_, state| {
            state.db.rows.iter().all(|row| row.delivery.live == Live::None || usize::from(row.delivery.run) > last_run(row))
        };
        9 "every earlier run has its outcome" |_, state| {
            state.db.rows.iter().all(|row| {
                let runs = match row.delivery.live {
                    Live::None => last_run(row),
                    _ => usize::from(row.delivery.run).saturating_sub(1),
                };
                row.outcomes[..runs].iter().all(|outcome| *outcome != Ending::None)
            })
        };
        10 "runs come from commands only" |_, state| {
            state.db.rows.iter().zip(state.replays).all(|(row, (replays, _))| {
                last_run(row).max(usize::from(row.delivery.run)) <= 1 + usize::from(replays)
            })
        };
        11 "a stale token changes nothing" |_, state| !state.broken.stale_change;
        12 "no handler runs under a lost lease" |_, state| !state.broken.stale_run;
        13 "a finished run is not run again" |_, state| !state.broken.run_again;
        14 "a committed try is not called lost" |_, state| !state.broken.false_loss;
        15 "one call of a run at a time" |_, state| {
            // A node that was paused between claim and call sends late, and a promoted standby may not
            // know of a lease: the effect key is for that.
            let calls: Vec<_> = slots(state)
                .filter(|slot| matches!(slot.phase, Phase::Called(_)) && !slot.late)
                .map(|slot| (slot.id, slot.run))
                .collect();
            calls.iter().enumerate().all(|(n, call)| !calls[..n].contains(call))
        };
        16 "one outside effect per intent" |_, state| {
            state.receiver.applied.iter().zip(state.replays).all(|(applied, (_, forced))| *applied <= 1 + forced)
        };
        17 "a forced replay takes effect" |core, state| {
            core.scope.bounds.failovers > 0 || (0..core.scope.keys()).all(|key| {
                let row = &state.db.rows[key];
                let finished = row.delivery.live == Live::None && last_run(row) > 0;
                core.scope.kinds[key] == Kind::Transactional
                    || !(finished && row.outcomes[last_run(row) - 1] == Ending::Succeeded)
                    || state.receiver.applied[key] == 1 + state.replays[key].1
            })
        };
        18 "only the poison dies of lost leases" |core, state| {
            core.scope.losses_max() >= core.scope.crashes || (0..core.scope.keys()).all(|key| {
                core.scope.poison.map(usize::from) == Some(key)
                    || !state.db.rows[key].outcomes.contains(&Ending::DeadPoison)
            })
        };
        19 "losses alone stay below the cap" |core, state| {
            state.db.rows.iter().all(|row| row.delivery.losses_alone < core.scope.crashes)
        };
        20 "nothing dies for want of its payload" |_, state| !state.broken.starved;
        22 "an outcome says what the receiver did" |core, state| {
            (0..core.scope.keys()).filter(|key| core.scope.kinds[*key].ignores_keys()).all(|key| {
                let row = &state.db.rows[key];
                let newest = last_run(row).max(usize::from(row.delivery.run));
                row.outcomes.iter().zip(1..).all(|(outcome, run)| match outcome {
                    // What a person gives up may be applied later.
                    Ending::None | Ending::GivenUp => true,
                    Ending::Succeeded => state.receiver.applied[key] > 0,
                    _ => run < newest || state.receiver.applied[key] == 0,
                })
            })
        };
        21 "rest means done" |core, state| is_done(core, state) || is_busy(core, state);
    };
    properties.extend(reached(scope));
    properties
}

/// Everything was answered and every delivery has its outcome.
fn is_done(core: &Core, state: &State) -> bool {
    let answered = (0..core.scope.requests.len())
        .all(|request| state.copies[request].at == At::Done)
        && state
            .writers
            .iter()
            .all(|writer| writer.stage == Stage::Idle);
    let handled = core.scope.nodes == 0
        || (0..core.scope.keys()).all(|key| {
            let row = &state.db.rows[key];
            row.delivery.live == Live::None || uncertain::is_for_people(core, state, key)
        }) && slots(state).all(|slot| slot.phase == Phase::Free);
    answered && handled
}

/// Something happens without any further fault or command.
fn is_busy(core: &Core, state: &State) -> bool {
    let mut actions = Vec::new();
    core.actions(state, &mut actions);
    actions.iter().any(|action| !action.is_optional())
}

fn last_run(row: &Row) -> usize {
    row.outcomes
        .iter()
        .rposition(|outcome| *outcome != Ending::None)
        .map_or(0, |run| run + 1)
}

/// What a scope must reach: a model in which nothing happens would keep every promise.
fn reached(scope: &Scope) -> Vec<Property<Core>> {
    let marks = sometimes! {
        DuplicateSuppressed "a duplicate is suppressed";
        ConflictRecorded "a conflict is recorded";
        Warned "a wait for the standby is cancelled";
        CutCommitted "a commit without reply had committed";
        CutRolledBack "a commit without reply was rolled back";
        FenceRefused "the fence refuses a stale node";
        EvidenceKept "a late answer is kept as evidence";
        Reaped "a lease is reaped";
        SuspectAlone "a suspect runs alone";
        Succeeded "a delivery succeeds";
        DeadBudget "a delivery spends its budget";
        DeadPermanent "a delivery fails for good";
        DeadPoison "a poison event dies";
        ReceiverSuppressed "the receiver suppresses a repeated call";
        Replayed "a dead run is replayed";
        ForcedReplay "a succeeded run is replayed by force";
        Purged "a payload is dropped";
        SuffixLost "a failover loses what was acknowledged";
        StoredAgain "a lost event is stored again";
        Uncertain "the result of a call is unknown";
        EarlyAbsent "an absent comes while the call may be under way";
        SentAfterAbsent "what is absent is sent again";
        StaleProbe "an earlier probe's word comes too late";
        EndedByProbe "a probe ends a delivery";
        EndedByEvidence "a late answer ends a delivery";
        EndedByPerson "a person ends a delivery";
        SentByPerson "a person has a call sent again";
        GivenUp "a person gives a delivery up";
    };
    let bounds = &scope.bounds;
    let dispatches = scope.nodes > 0;
    let has = |kind| dispatches && scope.kinds.contains(&kind);
    let calls = dispatches && scope.kinds.iter().any(|kind| *kind != Kind::Transactional);
    let two_same = scope
        .requests
        .iter()
        .enumerate()
        .any(|(n, r)| scope.requests[..n].contains(r));
    let expected = |mark: Mark| match mark {
        Mark::DuplicateSuppressed => two_same,
        Mark::ConflictRecorded => scope.requests.iter().any(|(_, content)| *content > 0),
        Mark::Warned => bounds.cuts > 0 && scope.replication == Replication::Synchronous,
        Mark::CutCommitted | Mark::CutRolledBack => bounds.cuts > 0,
        Mark::FenceRefused => has(Kind::Transactional) && bounds.pauses > 0,
        Mark::EvidenceKept => calls && bounds.pauses > 0,
        Mark::Reaped | Mark::SuspectAlone => dispatches && bounds.deaths + bounds.pauses > 0,
        Mark::Uncertain => has(Kind::Probed) || has(Kind::Held),
        Mark::EarlyAbsent | Mark::SentAfterAbsent | Mark::StaleProbe | Mark::EndedByProbe => {
            has(Kind::Probed)
        }
        Mark::EndedByEvidence => (has(Kind::Probed) || has(Kind::Held)) && bounds.pauses > 0,
        Mark::EndedByPerson | Mark::SentByPerson => bounds.decisions > 0,
        Mark::Succeeded | Mark::DeadBudget => dispatches,
        Mark::DeadPermanent => dispatches && scope.permanent,
        Mark::DeadPoison => scope.poison.is_some(),
        Mark::ReceiverSuppressed => {
            has(Kind::Http) && (scope.tries > 1 || bounds.deaths + bounds.failovers > 0)
        }
        Mark::GivenUp => bounds.decisions > 0 && bounds.replays > 0,
        Mark::Replayed => bounds.replays > 0,
        Mark::ForcedReplay => bounds.replays > 0 && !has(Kind::Held),
        Mark::Purged => bounds.purges > 0,
        Mark::SuffixLost | Mark::StoredAgain => {
            bounds.failovers > 0 && scope.replication == Replication::Asynchronous
        }
        _ => false,
    };
    marks
        .into_iter()
        .filter(|(mark, _)| expected(*mark))
        .map(|(_, property)| property)
        .collect()
}
