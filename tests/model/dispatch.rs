//! Handling: from a ready delivery to its outcome.
//!
//! | action | product |
//! | --- | --- |
//! | `Claim` | `delivery_claim.sql`, and `dispatch::claim`: what a node may take |
//! | `ClaimSuspect` | `delivery_claim_suspect.sql`, only by a node that executes nothing |
//! | `ClaimLost` | a claim whose reply was lost: leased under a token that nobody holds |
//! | `GiveBack`, `TooLate` | `delivery_give_back.sql`; the latter by `dispatch::call::run`, of a call that was not begun in time |
//! | `Lock` | `store::locked::begin`: `delivery_lock.sql`, `outcome_present.sql`; then the handler |
//! | `Settle` | `dispatch::settle`: `domain::delivery::next`, `delivery_finish.sql` or `delivery_retry.sql`, COMMIT |
//! | `OldEnds` | the server ends a COMMIT whose client is gone |
//! | `ReadBack` | `dispatch::work::resolve_one`: `delivery_lock_any.sql`, then `dispatch::reap::lost` |
//! | `Send`, `Reply` | `dispatch::handler::http`: a call with its effect key, and its answer |
//! | `SettleCall` | `dispatch::call::settle_call` |
//! | `LeaseEnds`, `Reap` | `delivery_expired.sql`, `dispatch::reap::lost`, `delivery_suspect.sql` |

use crate::guards::Guard;
use crate::model::{Action, Core, End, Mark};
use crate::scope::{Kind, Replication};
use crate::settle::{apply, finds, has_outcome, lost, remove, row_locked, unleased, waits_for_row};
use crate::state::{Delivery, Ending, Live, Node, Phase, Said, Slot, State};

pub(crate) fn actions(core: &Core, state: &State, actions: &mut Vec<Action>) {
    let bounds = &core.scope.bounds;
    let spent = &state.spent;
    for node in 0..core.scope.nodes {
        let this = &state.nodes[node];
        if !this.acts() {
            continue;
        }
        claims(core, state, node, actions);
        for slot in 0..core.scope.slots {
            let lease = &this.slots[slot];
            match lease.phase {
                Phase::Held => {
                    match core.kind(lease.key) {
                        Kind::Transactional if !waits_for_row(core, state, lease) => {
                            actions.push(Action::Lock { node, slot });
                        }
                        Kind::Transactional => {}
                        // A process that was stopped since its claim does not begin any more.
                        kind if kind.ignores_keys()
                            && lease.late
                            && core.has(Guard::BegunInTime) =>
                        {
                            actions.push(Action::TooLate { node, slot });
                        }
                        Kind::Http | Kind::Probed | Kind::Held => {
                            actions.push(Action::Send {
                                node,
                                slot,
                                arrives: true,
                            });
                            actions.push(Action::Send {
                                node,
                                slot,
                                arrives: false,
                            });
                        }
                    }
                    if spent.give_backs < bounds.give_backs {
                        actions.push(Action::GiveBack { node, slot });
                    }
                }
                Phase::Locked if core.scope.poison == Some(lease.key) => {
                    actions.push(Action::PoisonKills { node });
                }
                Phase::Locked => settles(core, state, node, slot, actions),
                Phase::OldOpen(_) => {
                    for committed in [true, false] {
                        actions.push(Action::OldEnds {
                            node,
                            slot,
                            committed,
                        });
                    }
                }
                Phase::Unsure if !row_locked(state, lease.key) => {
                    actions.push(Action::ReadBack { node, slot });
                }
                Phase::Free | Phase::Unsure => {}
                Phase::Called(sent) => replies(core, state, node, slot, sent, actions),
                Phase::Answered(_) => {
                    actions.push(Action::SettleCall {
                        node,
                        slot,
                        end: End::Answered,
                    });
                    if spent.cuts < bounds.cuts {
                        actions.push(Action::SettleCall {
                            node,
                            slot,
                            end: End::ReplyLost,
                        });
                        actions.push(Action::SettleCall {
                            node,
                            slot,
                            end: End::RolledBack,
                        });
                    }
                }
            }
        }
    }
    for key in 0..core.scope.keys() {
        leases(core, state, key, actions);
    }
}

/// What the caller may be told. `sent`: the call has left; whether it has arrived is another matter.
fn replies(
    core: &Core,
    state: &State,
    node: usize,
    slot: usize,
    sent: bool,
    actions: &mut Vec<Action>,
) {
    let key = state.nodes[node].slots[slot].key;
    let ignores_keys = core.kind(key).ignores_keys();
    let applied = sent && (!ignores_keys || state.receiver.wire[usize::from(key)] == 0);
    // Whether the receiver got it or not: no answer.
    let mut said = vec![if ignores_keys {
        Said::Unknown
    } else {
        Said::Retry
    }];
    if ignores_keys && !sent {
        // No connection: a definite answer.
        said.push(Said::Retry);
    }
    if applied {
        said.push(Said::Done);
    } else if core.scope.permanent && !sent {
        said.push(Said::Permanent);
    }
    let reply = |said| Action::Reply { node, slot, said };
    actions.extend(said.into_iter().map(reply));
}

fn claims(core: &Core, state: &State, node: usize, actions: &mut Vec<Action>) {
    let this = &state.nodes[node];
    let free = this.slots[..core.scope.slots]
        .iter()
        .filter(|slot| slot.phase == Phase::Free)
        .count();
    let apart = core.has(Guard::SuspectAlone);
    let alone = this
        .slots
        .iter()
        .any(|slot| slot.phase != Phase::Free && slot.suspect);
    let ready = |key: usize, suspect: bool| {
        let delivery = &state.db.rows[key].delivery;
        delivery.live == Live::Ready && delivery.suspect == suspect
    };
    if free > 0 && !(apart && alone) {
        let due = (0..core.scope.keys())
            .filter(|key| ready(*key, false) || (!apart && ready(*key, true)))
            .fold(0_u8, |bits, key| bits | 1 << key);
        for keys in 1..=due {
            if keys & !due == 0 && keys.count_ones() as usize <= free {
                actions.push(Action::Claim { node, keys });
            }
        }
    }
    if apart && this.is_empty() {
        for key in (0..core.scope.keys()).filter(|key| ready(*key, true)) {
            actions.push(Action::ClaimSuspect { node, key });
        }
    }
    if state.spent.cuts < core.scope.bounds.cuts {
        for key in (0..core.scope.keys()).filter(|key| ready(*key, false)) {
            actions.push(Action::ClaimLost { key });
        }
    }
}

fn settles(core: &Core, state: &State, node: usize, slot: usize, actions: &mut Vec<Action>) {
    let row = &state.db.rows[usize::from(state.nodes[node].slots[slot].key)];
    let said: &[Said] = match (row.payload, core.scope.permanent) {
        (false, _) => &[Said::Permanent],
        (true, false) => &[Said::Done, Said::Retry],
        (true, true) => &[Said::Done, Said::Retry, Said::Permanent],
    };
    for said in said.iter().copied() {
        actions.push(Action::Settle {
            node,
            slot,
            said,
            end: End::Answered,
        });
        if state.spent.cuts < core.scope.bounds.cuts {
            for end in [End::ReplyLost, End::RolledBack, End::StillOpen] {
                actions.push(Action::Settle {
                    node,
                    slot,
                    said,
                    end,
                });
            }
            if core.scope.replication == Replication::Synchronous {
                actions.push(Action::Settle {
                    node,
                    slot,
                    said,
                    end: End::Warned,
                });
            }
        }
    }
}

fn leases(core: &Core, state: &State, key: usize, actions: &mut Vec<Action>) {
    let delivery = &state.db.rows[key].delivery;
    if delivery.live != Live::Leased {
        return;
    }
    if !delivery.ended && may_end(core, state, delivery) {
        actions.push(Action::LeaseEnds { key });
    }
    let due = delivery.ended || !core.has(Guard::LeaseEnd);
    let reaper = core.has(Guard::Reaper) && state.nodes.iter().any(Node::acts);
    if due && reaper && !row_locked(state, u8::try_from(key).unwrap()) {
        actions.push(Action::Reap { key });
    }
}

/// A node that works is done before its lease ends: it gives back what it has not begun, a
/// handler's time-out lies within the lease, and so does a call's.
fn may_end(core: &Core, state: &State, delivery: &Delivery) -> bool {
    let holder = state.nodes.iter().find_map(|node| {
        let slot = node
            .slots
            .iter()
            .find(|s| s.phase != Phase::Free && s.claim == delivery.claim);
        slot.map(|slot| (node, slot))
    });
    holder.is_none_or(|(node, slot)| {
        node.paused
            || (!core.has(Guard::LeaseOutlivesCall) && matches!(slot.phase, Phase::Called(_)))
    })
}

pub(crate) fn claim(core: &Core, state: &mut State, node: usize, keys: u8) {
    for key in (0..core.scope.keys()).filter(|key| keys & (1 << key) != 0) {
        let slot = lease(core, state, key);
        if slot.suspect && state.nodes[node].is_empty() {
            core.mark(Mark::SuspectAlone);
        }
        if let Some(free) = state.nodes[node]
            .slots
            .iter_mut()
            .find(|s| s.phase == Phase::Free)
        {
            *free = slot;
        }
    }
    core.commit(state);
}

pub(crate) fn claim_lost(core: &Core, state: &mut State, key: usize) {
    state.spent.cuts += 1;
    lease(core, state, key);
    core.commit(state);
}

fn lease(core: &Core, state: &mut State, key: usize) -> Slot {
    state.claims += 1;
    let token = if core.has(Guard::RandomToken) {
        state.claims
    } else {
        state.db.sequence += 1;
        state.db.sequence
    };
    let row = &mut state.db.rows[key];
    row.delivery = Delivery {
        live: Live::Leased,
        token,
        claim: state.claims,
        ended: false,
        landed: false,
        ..row.delivery
    };
    let delivery = row.delivery;
    Slot {
        phase: Phase::Held,
        key: u8::try_from(key).unwrap(),
        id: row.id,
        run: delivery.run,
        generation: delivery.generation,
        failures: delivery.failures,
        suspect: delivery.suspect,
        losses_alone: delivery.losses_alone,
        token,
        claim: delivery.claim,
        late: false,
    }
}

pub(crate) fn give_back(core: &Core, state: &mut State, node: usize, slot: usize) {
    let lease = std::mem::take(&mut state.nodes[node].slots[slot]);
    let row = &mut state.db.rows[usize::from(lease.key)];
    let ours = row.id == lease.id
        && row.delivery.live == Live::Leased
        && (row.delivery.token == lease.token || !core.has(Guard::TokenAtGiveBack));
    if ours {
        state.broken.stale_change |= row.delivery.claim != lease.claim;
        row.delivery = Delivery {
            live: Live::Ready,
            ..unleased(row.delivery)
        };
        core.commit(state);
    } else {
        core.mark(Mark::FenceRefused);
    }
}

pub(crate) fn lock(core: &Core, state: &mut State, node: usize, slot: usize) {
    let lease = state.nodes[node].slots[slot];
    if !finds(core, state, &lease) {
        core.mark(Mark::FenceRefused);
        state.nodes[node].slots[slot] = Slot::default();
        return;
    }
    if has_outcome(core, state, &lease) {
        remove(core, state, &lease);
        state.nodes[node].slots[slot] = Slot::default();
        return;
    }
    let row = &mut state.db.rows[usize::from(lease.key)];
    let run = usize::from(lease.run) - 1;
    state.broken.stale_run |= row.delivery.claim != lease.claim;
    state.broken.run_again |= row.outcomes[run] != Ending::None;
    if !core.has(Guard::OneTransaction) {
        row.effects[run] += 1;
    }
    state.nodes[node].slots[slot].phase = Phase::Locked;
}

pub(crate) fn settle(
    core: &Core,
    state: &mut State,
    node: usize,
    slot: usize,
    said: Said,
    end: End,
) {
    let lease = state.nodes[node].slots[slot];
    state.spent.cuts += u8::from(end != End::Answered);
    state.nodes[node].slots[slot].phase = match end {
        End::StillOpen => Phase::OldOpen(said),
        End::Answered | End::AnswerLost => Phase::Free,
        End::ReplyLost | End::RolledBack | End::Warned | End::Unreplicated => Phase::Unsure,
    };
    if !matches!(end, End::StillOpen | End::RolledBack) {
        apply(core, state, &lease, said);
        if end != End::Warned {
            core.commit(state);
        }
    }
    if state.nodes[node].slots[slot].phase == Phase::Free {
        state.nodes[node].slots[slot] = Slot::default();
    }
}

pub(crate) fn old_ends(core: &Core, state: &mut State, node: usize, slot: usize, committed: bool) {
    let lease = state.nodes[node].slots[slot];
    if let (true, Phase::OldOpen(said)) = (committed, lease.phase) {
        apply(core, state, &lease, said);
        core.commit(state);
    }
    state.nodes[node].slots[slot].phase = Phase::Unsure;
}

pub(crate) fn read_back(core: &Core, state: &mut State, node: usize, slot: usize) {
    let lease = std::mem::take(&mut state.nodes[node].slots[slot]);
    let row = &state.db.rows[usize::from(lease.key)];
    let ours = row.id == lease.id
        && row.delivery.live == Live::Leased
        && row.delivery.token == lease.token;
    if ours {
        core.mark(Mark::CutRolledBack);
        let alone = lease.suspect || !core.has(Guard::LossesAloneOnly);
        lost(core, state, usize::from(lease.key), alone);
    } else {
        core.mark(Mark::CutCommitted);
        // Without the question it is taken for lost; only an outcome would tell otherwise.
        let told = row.id == lease.id && row.outcomes[usize::from(lease.run) - 1] != Ending::None;
        state.broken.false_loss |= !core.has(Guard::ReadBack) && row.id == lease.id && !told;
    }
}

pub(crate) fn send(core: &Core, state: &mut State, node: usize, slot: usize, arrives: bool) {
    let lease = state.nodes[node].slots[slot];
    let row = &state.db.rows[usize::from(lease.key)];
    if row.id != lease.id || !row.payload {
        state.nodes[node].slots[slot].phase = Phase::Answered(Said::Permanent);
        return;
    }
    if arrives && core.kind(lease.key).ignores_keys() {
        state.receiver.wire[usize::from(lease.key)] += 1;
    } else if arrives {
        let key = effect_key(core, &lease);
        let receiver = &mut state.receiver;
        if receiver.seen.contains(&key) {
            core.mark(Mark::ReceiverSuppressed);
        } else {
            if let Some(free) = receiver.seen.iter_mut().find(|seen| **seen == 0) {
                *free = key;
            }
            receiver.seen.sort_unstable();
            receiver.applied[usize::from(lease.key)] += 1;
        }
    }
    state.nodes[node].slots[slot].phase = Phase::Called(arrives);
}

fn effect_key(core: &Core, lease: &Slot) -> u16 {
    if !core.has(Guard::DerivedEffectKey) {
        1_000 + u16::from(lease.claim)
    } else if !core.has(Guard::EffectKeyFromEventKey) {
        100 + 8 * u16::from(lease.id) + u16::from(lease.generation)
    } else {
        1 + 8 * u16::from(lease.key) + u16::from(lease.generation)
    }
}

pub(crate) fn settle_call(core: &Core, state: &mut State, node: usize, slot: usize, end: End) {
    let lease = state.nodes[node].slots[slot];
    let Phase::Answered(said) = lease.phase else {
        return;
    };
    state.spent.cuts += u8::from(end != End::Answered);
    if end == End::RolledBack {
        // `write_until` tries again.
        core.mark(Mark::CutRolledBack);
        return;
    }
    if !finds(core, state, &lease) {
        core.mark(Mark::EvidenceKept);
        let row = &mut state.db.rows[usize::from(lease.key)];
        // One whose run is finished and was followed by another is kept for people only.
        let of_live_run = row.delivery.run <= lease.run;
        if core.kind(lease.key).ignores_keys() && row.id == lease.id && of_live_run {
            row.late_done |= said == Said::Done;
            row.late_no |= u16::from(said == Said::Permanent) << lease.claim;
            core.commit(state);
        }
    } else if has_outcome(core, state, &lease) {
        remove(core, state, &lease);
    } else {
        apply(core, state, &lease, said);
        core.commit(state);
    }
    if end == End::ReplyLost {
        core.mark(Mark::CutCommitted);
    } else {
        state.nodes[node].slots[slot] = Slot::default();
    }
}

pub(crate) fn lease_ends(state: &mut State, key: usize) {
    let delivery = &mut state.db.rows[key].delivery;
    delivery.ended = true;
    let claim = delivery.claim;
    for node in state.nodes.iter_mut().filter(|node| node.paused) {
        for slot in &mut node.slots {
            slot.late |= slot.phase != Phase::Free && slot.claim == claim;
        }
    }
}

/// The reaper takes a lease: a suspect was claimed alone, so it was lost alone.
pub(crate) fn reap(core: &Core, state: &mut State, key: usize) {
    core.mark(Mark::Reaped);
    let suspect = state.db.rows[key].delivery.suspect;
    lost(
        core,
        state,
        key,
        suspect || !core.has(Guard::LossesAloneOnly),
    );
}
