//! A call whose result is not known: on its way, asked about, decided.
//!
//! A call travels: between being sent and being applied the receiver knows nothing of it. It arrives or
//! is gone before `in_flight_until` passes; that much is asked of whoever sets a lease.
//!
//! | action | product |
//! | --- | --- |
//! | `Arrives` | the receiver, which ignores effect keys, applies a call |
//! | `Lands` | `in_flight_until` passes by the database's clock |
//! | `Ask` | `uncertain_claim.sql` |
//! | `Told` | the receiver's answer to the probe, true when it is given, or "cannot tell" |
//! | `Decide` | `dispatch::reconcile::decide`: `domain::uncertain::probed`, `uncertain_finish.sql`, `uncertain_release.sql`, `uncertain_wait.sql` |
//! | `ReadEvidence` | the same, by a late answer: `uncertain_evidence.sql` |
//! | `PersonDecides` | `store::resolve`, by a person who knows what the receiver has applied so far; who may replay also gives up |

use oncehook::domain::uncertain::probed;
use oncehook::domain::{ProbeSchedule, Probed, Standing, Step};

use crate::guards::Guard;
use crate::model::{Action, Core, Mark};
use crate::scope::Kind;
use crate::settle::{end, standing, unleased};
use crate::state::{Ask, Delivery, Ending, Live, Node, Phase, Row, State, Told, Word};

pub(crate) fn actions(core: &Core, state: &State, actions: &mut Vec<Action>) {
    for key in 0..core.scope.keys() {
        if !core.scope.kinds[key].ignores_keys() {
            continue;
        }
        if state.receiver.wire[key] > 0 {
            actions.push(Action::Arrives { key });
        }
        if may_land(state, key) {
            actions.push(Action::Lands { key });
        }
        if state.db.rows[key].delivery.live == Live::Uncertain {
            decisions(core, state, key, actions);
        }
    }
    for (node, this) in state.nodes.iter().enumerate() {
        if !this.acts() || this.ask.at == 0 {
            continue;
        }
        match this.ask.told {
            None => {
                let applied = state.receiver.applied[usize::from(this.ask.at - 1)] > 0;
                let truth = if applied { Told::Applied } else { Told::Absent };
                for told in [truth, Told::Nothing] {
                    actions.push(Action::Told { node, told });
                }
            }
            Some(_) => actions.push(Action::Decide { node }),
        }
    }
}

/// No call of the claim is on its way, and nobody who acts is about to send one or waits for one.
fn may_land(state: &State, key: usize) -> bool {
    let Row {
        delivery, flight, ..
    } = &state.db.rows[key];
    let claim = match delivery.live {
        _ if *flight != 0 => *flight,
        Live::Leased => delivery.claim,
        Live::Uncertain => delivery.call,
        Live::None | Live::Ready => return false,
    };
    let holds = |node: &Node| {
        node.acts()
            && node.slots.iter().any(|slot| {
                slot.claim == claim && matches!(slot.phase, Phase::Held | Phase::Called(_))
            })
    };
    !delivery.landed && state.receiver.wire[key] == 0 && !state.nodes.iter().any(holds)
}

fn decisions(core: &Core, state: &State, key: usize, actions: &mut Vec<Action>) {
    let (bounds, spent) = (&core.scope.bounds, &state.spent);
    if core.scope.kinds[key] == Kind::Probed && spent.probes < bounds.probes {
        for node in 0..core.scope.nodes {
            if state.nodes[node].acts() && state.nodes[node].ask == Ask::default() {
                actions.push(Action::Ask { node, key });
            }
        }
    }
    let anybody = state.nodes.iter().any(Node::acts);
    if anybody && core.has(Guard::EvidenceDecides) && evidence(core, &state.db.rows[key]).is_some()
    {
        actions.push(Action::ReadEvidence { key });
    }
    if spent.decisions < bounds.decisions {
        let applied = state.receiver.applied[key] > 0;
        let landed = state.db.rows[key].delivery.landed;
        let mut say = |word| actions.push(Action::PersonDecides { key, word });
        if applied {
            say(Word::Succeeded);
        } else {
            if landed || !core.has(Guard::RetryAfterFlight) {
                say(Word::Retry);
            }
            if bounds.replays > 0 {
                say(Word::Dead);
            }
        }
    }
}

/// What a late answer says of the call in question.
fn evidence(core: &Core, row: &Row) -> Option<Ending> {
    let of_this_call = row.late_no & (1 << row.delivery.call) != 0;
    let no = of_this_call || (row.late_no != 0 && !core.has(Guard::NoOfItsOwnCall));
    if row.late_done {
        Some(Ending::Succeeded)
    } else {
        no.then_some(Ending::DeadPermanent)
    }
}

/// Whether nothing but a person decides about it any more.
pub(crate) fn is_for_people(core: &Core, state: &State, key: usize) -> bool {
    let row = &state.db.rows[key];
    let asked =
        core.scope.kinds[key] == Kind::Held || state.spent.probes >= core.scope.bounds.probes;
    row.delivery.live == Live::Uncertain && asked && evidence(core, row).is_none()
}

pub(crate) fn arrives(state: &mut State, key: usize) {
    state.receiver.wire[key] -= 1;
    state.receiver.applied[key] += 1;
}

/// The time for which a call may be under way is longer than that within which it must begin.
pub(crate) fn lands(state: &mut State, key: usize) {
    let row = &mut state.db.rows[key];
    let claim = match std::mem::take(&mut row.flight) {
        0 => {
            row.delivery.landed = true;
            row.delivery.claim.max(row.delivery.call)
        }
        given_up => given_up,
    };
    let slots = state.nodes.iter_mut().flat_map(|node| &mut node.slots);
    for slot in slots.filter(|slot| slot.phase == Phase::Held && slot.claim == claim) {
        slot.late = true;
    }
}

pub(crate) fn ask(state: &mut State, node: usize, key: usize) {
    state.spent.probes += 1;
    // Tokens are drawn at random; a number that was not there before stands for that.
    let token = state.spent.probes;
    let delivery = &mut state.db.rows[key].delivery;
    delivery.probe = token;
    state.nodes[node].ask = Ask {
        at: u8::try_from(key + 1).unwrap(),
        token,
        landed: delivery.landed,
        told: None,
    };
}

pub(crate) fn decide(core: &Core, state: &mut State, node: usize) {
    let ask = std::mem::take(&mut state.nodes[node].ask);
    let (Some(told), key) = (ask.told, usize::from(ask.at - 1)) else {
        return;
    };
    let row = &mut state.db.rows[key];
    if row.delivery.live != Live::Uncertain {
        core.mark(Mark::StaleProbe);
        return;
    }
    if core.has(Guard::EvidenceDecides) && evidence(core, row).is_some() {
        read_evidence(core, state, key);
        return;
    }
    if told == Told::Absent && row.delivery.probe != ask.token && core.has(Guard::LastProbe) {
        core.mark(Mark::StaleProbe);
        return;
    }
    let found = match told {
        Told::Applied => Probed::Applied { resource: None },
        Told::Absent => Probed::Absent,
        Told::Nothing => Probed::Unknown { why: String::new() },
    };
    let (progress, policy) = standing(core, &row.delivery);
    let standing = Standing {
        progress,
        probes: 1,
        landed: ask.landed || !core.has(Guard::AbsentAfterFlight),
    };
    match probed(standing, &found, &policy, &ProbeSchedule::default()) {
        Step::Finish { ending, .. } => {
            core.mark(Mark::EndedByProbe);
            let ending = match ending {
                oncehook::domain::Ending::Succeeded => Ending::Succeeded,
                _ => Ending::DeadBudget,
            };
            end(core, row, ending);
        }
        // No delivery of the model has a lane: those are a world of their own.
        Step::Hold { reason } => panic!("held: {reason}"),
        Step::Release => {
            core.mark(Mark::SentAfterAbsent);
            release(row);
        }
        Step::ProbeAt(_) | Step::ProbeWhenLanded | Step::Person => {
            if told == Told::Absent {
                core.mark(Mark::EarlyAbsent);
            }
        }
    }
    core.commit(state);
}

fn release(row: &mut Row) {
    row.delivery = Delivery {
        live: Live::Ready,
        ..unleased(row.delivery)
    };
}

pub(crate) fn read_evidence(core: &Core, state: &mut State, key: usize) {
    let row = &mut state.db.rows[key];
    if let Some(ending) = evidence(core, row) {
        core.mark(Mark::EndedByEvidence);
        end(core, row, ending);
        core.commit(state);
    }
}

pub(crate) fn person_decides(core: &Core, state: &mut State, key: usize, word: Word) {
    state.spent.decisions += 1;
    let row = &mut state.db.rows[key];
    match word {
        Word::Retry => {
            core.mark(Mark::SentByPerson);
            release(row);
        }
        Word::Succeeded => {
            core.mark(Mark::EndedByPerson);
            end(core, row, Ending::Succeeded);
        }
        Word::Dead => {
            row.flight = if row.delivery.landed {
                0
            } else {
                row.delivery.call
            };
            end(core, row, Ending::GivenUp);
        }
    }
    core.commit(state);
}
