//! What happens to the parts: nodes and databases die, stop and come back; people give commands.
//!
//! | action | product |
//! | --- | --- |
//! | `ServerDies`, `NodeDies`, `NodeStarts` | a process is killed and started again |
//! | `PoisonKills` | a handler takes its process down |
//! | `NodePauses`, `NodeResumes`, `IdleEnds` | a stopped process; the server ends its idle transaction |
//! | `DatabaseRestarts` | every open transaction is rolled back, connections are lost |
//! | `Replicates`, `FailsOver` | the standby catches up; it is promoted with what it has |
//! | `Replay` | `store::replay`: insert, read the outcomes, arm, one transaction; its row is nobody else's before COMMIT |
//! | `ReplayReads`, `ReplayOpens` | the two halves in the order that `Guard::ReplayReadsAfterInsert` prevents |
//! | `Purge` | retention drops a payload; its key stays |

use crate::guards::Guard;
use crate::ingest;
use crate::model::{Action, Core, Mark};
use crate::scope::Replication;
use crate::state::{
    Acknowledged, Ask, At, Delivery, Ending, Live, Node, Operator, Phase, RUNS, Row, Slot, Stage,
    State,
};

pub(crate) fn actions(core: &Core, state: &State, actions: &mut Vec<Action>) {
    nodes(core, state, actions);
    databases(core, state, actions);
    commands(core, state, actions);
}

fn nodes(core: &Core, state: &State, actions: &mut Vec<Action>) {
    let (bounds, spent) = (&core.scope.bounds, &state.spent);
    for node in 0..core.scope.nodes {
        let this = &state.nodes[node];
        if this.down {
            actions.push(Action::NodeStarts { node });
            continue;
        }
        if this.paused {
            actions.push(Action::NodeResumes { node });
            for slot in 0..core.scope.slots {
                if this.slots[slot].phase == Phase::Locked {
                    actions.push(Action::IdleEnds { node, slot });
                }
            }
        }
        if this.is_empty() && this.ask == Ask::default() {
            continue;
        }
        if spent.deaths < bounds.deaths {
            actions.push(Action::NodeDies { node });
        }
        if !this.paused && spent.pauses < bounds.pauses {
            actions.push(Action::NodePauses { node });
        }
    }
}

fn databases(core: &Core, state: &State, actions: &mut Vec<Action>) {
    let (bounds, spent) = (&core.scope.bounds, &state.spent);
    let open = state.writers.iter().any(|w| w.stage != Stage::Idle)
        || state
            .nodes
            .iter()
            .flat_map(|n| &n.slots)
            .any(|s| matches!(s.phase, Phase::Locked | Phase::OldOpen(_)));
    if open && spent.restarts < bounds.restarts {
        actions.push(Action::DatabaseRestarts);
    }
    if core.scope.replication != Replication::None && state.standby != state.db {
        actions.push(Action::Replicates);
        if spent.failovers < bounds.failovers {
            actions.push(Action::FailsOver);
        }
    }
}

fn commands(core: &Core, state: &State, actions: &mut Vec<Action>) {
    let (bounds, spent) = (&core.scope.bounds, &state.spent);
    for key in 0..core.scope.keys() {
        let row = &state.db.rows[key];
        if spent.purges < bounds.purges
            && row.payload
            && (row.delivery.live == Live::None || !core.has(Guard::PayloadGate))
        {
            actions.push(Action::Purge { key });
        }
        if spent.replays >= bounds.replays || row.events == 0 {
            continue;
        }
        let Some((run, last)) = last_run(row) else {
            continue;
        };
        if usize::from(run) >= RUNS || (!row.payload && core.has(Guard::ReplayNeedsPayload)) {
            continue;
        }
        let force = last == Ending::Succeeded;
        // Who has a receiver that ignores keys looks into its books first, as for a decision.
        if core.scope.kinds[key].ignores_keys()
            && (state.receiver.applied[key] > 0
                || (row.flight != 0 && core.has(Guard::ReplayAfterFlight)))
        {
            continue;
        }
        if row.delivery.live == Live::None || !core.has(Guard::ReplayRefusedWhileLive) {
            actions.push(Action::Replay { key, force });
        }
        if !core.has(Guard::ReplayReadsAfterInsert) && state.operator.at == 0 {
            actions.push(Action::ReplayReads { key, force });
        }
    }
    if state.operator.at > 0 {
        actions.push(Action::ReplayOpens);
    }
}

/// The highest finished run.
fn last_run(row: &Row) -> Option<(u8, Ending)> {
    (0..RUNS)
        .rev()
        .find(|run| row.outcomes[*run] != Ending::None)
        .map(|run| (u8::try_from(run + 1).unwrap(), row.outcomes[run]))
}

pub(crate) fn replay(core: &Core, state: &mut State, key: usize, force: bool) {
    let row = &state.db.rows[key];
    let Some((last_run, last)) = last_run(row) else {
        return;
    };
    let operator = Operator {
        at: u8::try_from(key + 1).unwrap(),
        last_run,
        last,
        generation: generation_of_last(state, key),
        force,
    };
    open(core, state, operator);
}

/// Generations of finished runs are not kept apart: one a forced replay.
fn generation_of_last(state: &State, key: usize) -> u8 {
    let live = &state.db.rows[key].delivery;
    if live.live == Live::None {
        state.db.rows[key].generation
    } else {
        live.generation
    }
}

pub(crate) fn replay_reads(state: &mut State, key: usize, force: bool) {
    let Some((last_run, last)) = last_run(&state.db.rows[key]) else {
        return;
    };
    state.operator = Operator {
        at: u8::try_from(key + 1).unwrap(),
        last_run,
        last,
        generation: generation_of_last(state, key),
        force,
    };
}

pub(crate) fn replay_opens(core: &Core, state: &mut State) {
    let operator = std::mem::take(&mut state.operator);
    let row = &state.db.rows[usize::from(operator.at - 1)];
    if row.events == 0
        || row.delivery.live != Live::None
        || state.spent.replays >= core.scope.bounds.replays
    {
        core.mark(Mark::ReplayRefused);
        return;
    }
    open(core, state, operator);
}

fn open(core: &Core, state: &mut State, operator: Operator) {
    let key = usize::from(operator.at - 1);
    let succeeded = operator.last == Ending::Succeeded;
    let raised = if succeeded {
        core.has(Guard::ForcedRaisesGeneration)
    } else {
        !core.has(Guard::ReplayKeepsEffectKey)
    };
    core.mark(if succeeded {
        Mark::ForcedReplay
    } else {
        Mark::Replayed
    });
    state.spent.replays += 1;
    state.replays[key].0 += 1;
    state.replays[key].1 += u8::from(succeeded);
    let row = &mut state.db.rows[key];
    row.generation = operator.generation + u8::from(raised);
    row.delivery = Delivery {
        live: Live::Ready,
        run: operator.last_run + 1,
        generation: row.generation,
        ..Delivery::default()
    };
    // Late answers are of their run.
    (row.late_done, row.late_no) = (false, 0);
    core.commit(state);
}

pub(crate) fn purge(core: &Core, state: &mut State, key: usize) {
    state.spent.purges += 1;
    state.db.rows[key].payload = false;
    core.mark(Mark::Purged);
    core.commit(state);
}

pub(crate) fn node_dies(state: &mut State, node: usize) {
    state.nodes[node] = Node {
        down: true,
        ..Node::default()
    };
}

pub(crate) fn idle_ends(state: &mut State, node: usize, slot: usize) {
    state.nodes[node].slots[slot].phase = Phase::Unsure;
}

/// Every open transaction is rolled back, and whoever has one loses its connection.
pub(crate) fn connections_break(core: &Core, state: &mut State) {
    for slot in state.nodes.iter_mut().flat_map(|node| &mut node.slots) {
        if matches!(slot.phase, Phase::Locked | Phase::OldOpen(_)) {
            slot.phase = Phase::Unsure;
        }
    }
    for writer in 0..state.writers.len() {
        if state.writers[writer].stage != Stage::Idle {
            ingest::again(core, state, writer);
        }
    }
}

pub(crate) fn fails_over(core: &Core, state: &mut State) {
    state.spent.failovers += 1;
    state.db = state.standby;
    state.operator = Operator::default();
    for slot in state.nodes.iter_mut().flat_map(|node| &mut node.slots) {
        let known = state.db.rows[usize::from(slot.key)].delivery.claim == slot.claim;
        slot.late |= slot.phase != Phase::Free && !known;
    }
    connections_break(core, state);
    if core.scope.replication == Replication::Asynchronous {
        // What the standby lacks is lost by the operator's choice; within their horizons providers
        // send again, or the events are fetched from them.
        for request in 0..core.scope.requests.len() {
            if !is_stored(core, state, request)
                && state.copies[request].acknowledged != Acknowledged::No
            {
                core.mark(Mark::SuffixLost);
                state.copies[request].acknowledged = Acknowledged::No;
                if state.copies[request].at == At::Done {
                    state.copies[request].at = At::Sender;
                }
            }
        }
    }
}

/// Whether the database has what a request's 2xx said.
pub(crate) fn is_stored(core: &Core, state: &State, request: usize) -> bool {
    let (key, content) = core.scope.requests[request];
    let row = &state.db.rows[usize::from(key)];
    match state.copies[request].acknowledged {
        Acknowledged::No => true,
        Acknowledged::Stored => row.events > 0 && row.content == content,
        Acknowledged::Conflict => row.events > 0 && row.conflicts & (1 << content) != 0,
    }
}

/// Slots of all nodes.
pub(crate) fn slots(state: &State) -> impl Iterator<Item = &Slot> {
    state.nodes.iter().flat_map(|node| &node.slots)
}
