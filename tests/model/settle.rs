//! The statements of a settle transaction: what the lock finds, what the guarded writes change.
//!
//! What a verdict makes of a delivery is decided by the product's own `domain::delivery::next`.

use std::time::Duration;

use oncehook::domain::delivery::next;
use oncehook::domain::{self, OnUnknown, Policy, Progress, RetryPolicy, Transition, Verdict};

use crate::guards::Guard;
use crate::model::{Core, Mark};
use crate::scope::Kind;
use crate::state::{Delivery, Ending, Live, Phase, Row, Said, Slot, State};

/// Whether a settle transaction holds the row's lock.
pub(crate) fn row_locked(state: &State, key: u8) -> bool {
    state.nodes.iter().flat_map(|node| &node.slots).any(|slot| {
        slot.key == key
            && slot.id == state.db.rows[usize::from(key)].id
            && matches!(slot.phase, Phase::Locked | Phase::OldOpen(_))
    })
}

/// What the lock statement finds: the row of this lease, by its token.
pub(crate) fn finds(core: &Core, state: &State, lease: &Slot) -> bool {
    let row = &state.db.rows[usize::from(lease.key)];
    row.id == lease.id
        && row.delivery.live != Live::None
        && (row.delivery.token == lease.token || !core.has(Guard::TokenAtLock))
}

pub(crate) fn waits_for_row(core: &Core, state: &State, lease: &Slot) -> bool {
    finds(core, state, lease) && row_locked(state, lease.key)
}

/// What the guarded writes compare.
pub(crate) fn holds(core: &Core, state: &State, lease: &Slot) -> bool {
    let row = &state.db.rows[usize::from(lease.key)];
    row.id == lease.id
        && row.delivery.live != Live::None
        && (row.delivery.token == lease.token || !core.has(Guard::TokenAtFinish))
}

pub(crate) fn unleased(delivery: Delivery) -> Delivery {
    Delivery {
        token: 0,
        claim: 0,
        ended: false,
        landed: false,
        call: 0,
        probe: 0,
        ..delivery
    }
}

pub(crate) fn has_outcome(core: &Core, state: &State, lease: &Slot) -> bool {
    core.has(Guard::OutcomeRead)
        && state.db.rows[usize::from(lease.key)].outcomes[usize::from(lease.run) - 1]
            != Ending::None
}

/// The run has its outcome: only the row goes.
pub(crate) fn remove(core: &Core, state: &mut State, lease: &Slot) {
    if holds(core, state, lease) {
        let row = &mut state.db.rows[usize::from(lease.key)];
        state.broken.stale_change |= row.delivery.claim != lease.claim;
        row.delivery = Delivery::default();
        core.commit(state);
    }
}

pub(crate) fn lost(core: &Core, state: &mut State, key: usize, alone: bool) {
    let row = &state.db.rows[key];
    if core.has(Guard::OutcomeRead)
        && row.outcomes[usize::from(row.delivery.run) - 1] != Ending::None
    {
        state.db.rows[key].delivery = Delivery::default();
    } else {
        transit(
            core,
            state,
            key,
            &Verdict::Lost { alone },
            Ending::DeadPoison,
        );
    }
    core.commit(state);
}

/// The writes of a settle transaction, guarded by the token: nothing when it is not ours.
pub(crate) fn apply(core: &Core, state: &mut State, lease: &Slot, said: Said) {
    if !holds(core, state, lease) {
        core.mark(Mark::FenceRefused);
        return;
    }
    let key = usize::from(lease.key);
    let (run, transactional) = (
        usize::from(lease.run) - 1,
        core.kind(lease.key) == Kind::Transactional,
    );
    let row = &mut state.db.rows[key];
    state.broken.stale_change |= row.delivery.claim != lease.claim;
    let payload = row.payload;
    let taken =
        core.has(Guard::UniqueOutcome) && row.outcome_rows[usize::from(row.delivery.run) - 1] > 0;
    if said == Said::Done && transactional && core.has(Guard::OneTransaction) && !taken {
        row.effects[run] += 1;
    }
    let error = String::new();
    match said {
        // The second outcome of a run breaks the primary key: everything is rolled back, a failed try.
        _ if taken => {
            row.delivery = Delivery {
                live: Live::Ready,
                ..unleased(row.delivery)
            }
        }
        Said::Done => transit(
            core,
            state,
            key,
            &Verdict::Done { resource: None },
            Ending::Succeeded,
        ),
        Said::Unknown => transit(
            core,
            state,
            key,
            &Verdict::Unknown { after: None, error },
            Ending::DeadBudget,
        ),
        Said::Retry => transit(
            core,
            state,
            key,
            &Verdict::Retry { after: None, error },
            Ending::DeadBudget,
        ),
        Said::Permanent => {
            let ending = if payload {
                Ending::DeadPermanent
            } else {
                Ending::DeadExpired
            };
            state.broken.starved |= !payload;
            transit(core, state, key, &Verdict::Permanent { error }, ending);
        }
    }
}

/// Outcome and delete.
pub(crate) fn end(core: &Core, row: &mut Row, ending: Ending) {
    core.mark(Mark::of(ending));
    let run = usize::from(row.delivery.run) - 1;
    row.outcomes[run] = ending;
    row.outcome_rows[run] += 1;
    row.delivery = Delivery::default();
}

/// Where a delivery stands, and the policy it is under, as the product's own decisions take them.
pub(crate) fn standing(core: &Core, was: &Delivery) -> (Progress, Policy) {
    let progress = Progress {
        // The last `tries` of the twelve that are granted in any case.
        failures: i16::from(was.failures) + RetryPolicy::TRIES_MIN - i16::from(core.scope.tries),
        suspect: was.suspect,
        losses_alone: i16::from(was.losses_alone),
        not_yet: 0,
        since_not_yet: Duration::ZERO,
        laned: false,
        since_first: Duration::from_hours(1),
    };
    let policy = Policy {
        retry: RetryPolicy {
            span: Duration::ZERO,
            ..RetryPolicy::default()
        },
        crashes: if core.has(Guard::CrashCap) {
            i16::from(core.scope.crashes)
        } else {
            i16::MAX
        },
        ..Policy::default()
    };
    (progress, policy)
}

/// `domain::delivery::next` decides; what it says is written.
fn transit(core: &Core, state: &mut State, key: usize, verdict: &Verdict, ending: Ending) {
    let row = &mut state.db.rows[key];
    let was = row.delivery;
    let (progress, policy) = standing(core, &was);
    let guard = match verdict {
        Verdict::Lost { .. } => Guard::LostIsUncertain,
        _ => Guard::UnknownIsUncertain,
    };
    let on_unknown = if core.has(guard) {
        core.scope.kinds[key].on_unknown()
    } else {
        OnUnknown::Retry
    };
    match next(progress, verdict, &policy, on_unknown, 0.5) {
        Transition::Finish {
            ending: decided, ..
        } => {
            assert_eq!(
                decided == domain::Ending::Dead,
                ending.is_dead(),
                "{verdict:?} became {decided:?}"
            );
            end(core, row, ending);
        }
        Transition::Uncertain { losses_alone } => {
            core.mark(Mark::Uncertain);
            let lost = matches!(verdict, Verdict::Lost { .. });
            row.delivery = Delivery {
                live: Live::Uncertain,
                call: was.claim,
                landed: was.landed,
                failures: was.failures + u8::from(!lost),
                suspect: lost,
                losses_alone: u8::try_from(losses_alone).unwrap(),
                ..unleased(was)
            };
        }
        Transition::RetryLater { .. } => {
            row.delivery = Delivery {
                live: Live::Ready,
                failures: was.failures + 1,
                suspect: false,
                ..unleased(was)
            };
        }
        // No delivery of the model has a lane: those are a world of their own.
        Transition::Hold { reason } => panic!("held: {reason}"),
        Transition::Postpone { delay } => panic!("nobody says not yet: {delay:?}"),
        Transition::Suspect { losses_alone } => {
            row.delivery = Delivery {
                live: Live::Ready,
                suspect: true,
                losses_alone: u8::try_from(losses_alone).unwrap(),
                ..unleased(was)
            };
        }
    }
}
