//! The model: what can be done in a state, and what comes of it.

use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use crate::guards::{Guard, Removed};
use crate::scope::{Kind, Replication, Scope};
use crate::state::{Delivery, Ending, Live, Row, Said, State, Told, Word};
use crate::{dispatch, ingest, properties, state, uncertain, world};

/// How a COMMIT ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Done, and its reply came.
    Answered,
    /// Done, and the sender's answer got lost on its way (ingest only).
    AnswerLost,
    /// Done; the connection broke before the reply.
    ReplyLost,
    /// Not done; the connection broke.
    RolledBack,
    /// The connection broke, and the server is still at it (settle only).
    StillOpen,
    /// Done here; the wait for the standby was cancelled: success with a warning.
    Warned,
    /// Done here; the primary was restarted while it waited for the standby.
    Unreplicated,
}

/// What can happen. The modules say which statement or function each stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Take {
        writer: usize,
        first: usize,
        then: Option<usize>,
    },
    Insert {
        writer: usize,
    },
    ReadLosers {
        writer: usize,
    },
    AnswerEarly {
        writer: usize,
    },
    Commit {
        writer: usize,
        end: End,
    },
    ServerDies {
        writer: usize,
    },

    Claim {
        node: usize,
        keys: u8,
    },
    ClaimSuspect {
        node: usize,
        key: usize,
    },
    ClaimLost {
        key: usize,
    },
    GiveBack {
        node: usize,
        slot: usize,
    },
    TooLate {
        node: usize,
        slot: usize,
    },
    Lock {
        node: usize,
        slot: usize,
    },
    Settle {
        node: usize,
        slot: usize,
        said: Said,
        end: End,
    },
    OldEnds {
        node: usize,
        slot: usize,
        committed: bool,
    },
    ReadBack {
        node: usize,
        slot: usize,
    },
    Send {
        node: usize,
        slot: usize,
        arrives: bool,
    },
    Reply {
        node: usize,
        slot: usize,
        said: Said,
    },
    SettleCall {
        node: usize,
        slot: usize,
        end: End,
    },
    LeaseEnds {
        key: usize,
    },
    Reap {
        key: usize,
    },

    Arrives {
        key: usize,
    },
    Lands {
        key: usize,
    },
    Ask {
        node: usize,
        key: usize,
    },
    Told {
        node: usize,
        told: Told,
    },
    Decide {
        node: usize,
    },
    ReadEvidence {
        key: usize,
    },
    PersonDecides {
        key: usize,
        word: Word,
    },

    PoisonKills {
        node: usize,
    },
    NodeDies {
        node: usize,
    },
    NodeStarts {
        node: usize,
    },
    NodePauses {
        node: usize,
    },
    NodeResumes {
        node: usize,
    },
    IdleEnds {
        node: usize,
        slot: usize,
    },
    DatabaseRestarts,
    Replicates,
    FailsOver,

    Replay {
        key: usize,
        force: bool,
    },
    ReplayReads {
        key: usize,
        force: bool,
    },
    ReplayOpens,
    Purge {
        key: usize,
    },
}

impl Action {
    /// Faults and commands may happen or not; everything else happens sooner or later.
    pub(crate) fn is_optional(self) -> bool {
        match self {
            Self::Commit { end, .. } | Self::Settle { end, .. } | Self::SettleCall { end, .. } => {
                end != End::Answered
            }
            Self::ServerDies { .. }
            | Self::ClaimLost { .. }
            | Self::GiveBack { .. }
            | Self::NodeDies { .. }
            | Self::NodePauses { .. }
            | Self::DatabaseRestarts
            | Self::Replicates
            | Self::FailsOver
            | Self::Replay { .. }
            | Self::ReplayReads { .. }
            | Self::PersonDecides { .. }
            | Self::Purge { .. } => true,
            _ => false,
        }
    }
}

/// What was reached; each scope says which of these it must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    DuplicateSuppressed,
    ConflictRecorded,
    AnsweredEarly,
    Warned,
    CutCommitted,
    CutRolledBack,
    FenceRefused,
    EvidenceKept,
    Reaped,
    SuspectAlone,
    Succeeded,
    DeadBudget,
    DeadPermanent,
    DeadPoison,
    DeadExpired,
    ReceiverSuppressed,
    Replayed,
    ForcedReplay,
    ReplayRefused,
    Purged,
    SuffixLost,
    StoredAgain,
    Uncertain,
    EarlyAbsent,
    SentAfterAbsent,
    StaleProbe,
    EndedByProbe,
    EndedByEvidence,
    EndedByPerson,
    SentByPerson,
    GivenUp,
}

impl Mark {
    pub(crate) fn of(ending: Ending) -> Self {
        match ending {
            Ending::None | Ending::Succeeded => Self::Succeeded,
            Ending::DeadBudget => Self::DeadBudget,
            Ending::DeadPermanent => Self::DeadPermanent,
            Ending::DeadPoison => Self::DeadPoison,
            Ending::DeadExpired => Self::DeadExpired,
            Ending::GivenUp => Self::GivenUp,
        }
    }
}

/// A scope, with or without all of its guards.
pub(crate) struct Core {
    pub(crate) scope: Scope,
    pub(crate) removed: Removed,
    /// Marks reached so far. Not part of a state: it would only multiply them.
    marks: AtomicU64,
    /// Properties found broken; only the first counterexample, the shortest, is reported.
    broken: AtomicU64,
}

impl Core {
    pub(crate) fn new(scope: Scope, removed: &[Guard]) -> Self {
        Self {
            scope,
            removed: Removed::of(removed),
            marks: AtomicU64::new(0),
            broken: AtomicU64::new(0),
        }
    }

    /// Whether a guard is in place.
    pub(crate) fn has(&self, guard: Guard) -> bool {
        self.removed.has(guard)
    }

    pub(crate) fn key_of(&self, request: u8) -> usize {
        usize::from(self.scope.requests[usize::from(request)].0)
    }

    pub(crate) fn content_of(&self, request: u8) -> u8 {
        self.scope.requests[usize::from(request)].1
    }

    pub(crate) fn kind(&self, key: u8) -> Kind {
        self.scope.kinds[usize::from(key)]
    }

    pub(crate) fn mark(&self, mark: Mark) {
        self.marks.fetch_or(1 << (mark as u8), Ordering::Relaxed);
    }

    pub(crate) fn reached(&self, mark: Mark) -> bool {
        self.marks.load(Ordering::Relaxed) & (1 << (mark as u8)) != 0
    }

    /// A property's value, `true` from its second violation on.
    pub(crate) fn first(&self, property: u8, holds: bool) -> bool {
        holds || self.broken.fetch_or(1 << property, Ordering::Relaxed) & (1 << property) != 0
    }

    /// A commit that was answered: a synchronous standby has it, and all before it.
    pub(crate) fn commit(&self, state: &mut State) {
        if self.scope.replication == Replication::Synchronous {
            state.standby = state.db;
        }
    }

    fn begin(&self) -> State {
        let mut db = state::Database::default();
        if self.scope.requests.is_empty() {
            for key in 0..self.scope.keys() {
                db.rows[key] = Row {
                    events: 1,
                    id: u8::try_from(key + 1).unwrap(),
                    payload: true,
                    delivery: Delivery {
                        live: Live::Ready,
                        run: 1,
                        ..Delivery::default()
                    },
                    ..Row::default()
                };
            }
        }
        State {
            standby: if self.scope.replication == Replication::None {
                state::Database::default()
            } else {
                db
            },
            db,
            copies: Default::default(),
            writers: Default::default(),
            nodes: Default::default(),
            receiver: state::Receiver::default(),
            operator: state::Operator::default(),
            claims: 0,
            ids: 0,
            replays: Default::default(),
            spent: state::Spent::default(),
            broken: state::Broken::default(),
        }
    }
}

impl Model for Core {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        ingest::actions(self, state, actions);
        dispatch::actions(self, state, actions);
        uncertain::actions(self, state, actions);
        world::actions(self, state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = *last;
        let state = &mut next;
        match action {
            Action::Take {
                writer,
                first,
                then,
            } => ingest::take(self, state, writer, first, then),
            Action::Insert { writer } => ingest::insert(self, state, writer),
            Action::ReadLosers { writer } => ingest::read_losers(self, state, writer),
            Action::AnswerEarly { writer } => ingest::answer_early(self, state, writer),
            Action::Commit { writer, end } => ingest::commit(self, state, writer, end),
            Action::ServerDies { writer } => {
                state.spent.deaths += 1;
                ingest::refuse(state, writer);
            }
            Action::Claim { node, keys } => dispatch::claim(self, state, node, keys),
            Action::ClaimSuspect { node, key } => dispatch::claim(self, state, node, 1 << key),
            Action::ClaimLost { key } => dispatch::claim_lost(self, state, key),
            Action::GiveBack { node, slot } => {
                state.spent.give_backs += 1;
                dispatch::give_back(self, state, node, slot);
            }
            Action::TooLate { node, slot } => dispatch::give_back(self, state, node, slot),
            Action::Lock { node, slot } => dispatch::lock(self, state, node, slot),
            Action::Settle {
                node,
                slot,
                said,
                end,
            } => dispatch::settle(self, state, node, slot, said, end),
            Action::OldEnds {
                node,
                slot,
                committed,
            } => dispatch::old_ends(self, state, node, slot, committed),
            Action::ReadBack { node, slot } => dispatch::read_back(self, state, node, slot),
            Action::Send {
                node,
                slot,
                arrives,
            } => dispatch::send(self, state, node, slot, arrives),
            Action::Reply { node, slot, said } => {
                state.nodes[node].slots[slot].phase = state::Phase::Answered(said);
            }
            Action::SettleCall { node, slot, end } => {
                dispatch::settle_call(self, state, node, slot, end);
            }
            Action::LeaseEnds { key } => dispatch::lease_ends(state, key),
            Action::Reap { key } => dispatch::reap(self, state, key),
            Action::Arrives { key } => uncertain::arrives(state, key),
            Action::Lands { key } => uncertain::lands(state, key),
            Action::Ask { node, key } => uncertain::ask(state, node, key),
            Action::Told { node, told } => state.nodes[node].ask.told = Some(told),
            Action::Decide { node } => uncertain::decide(self, state, node),
            Action::ReadEvidence { key } => uncertain::read_evidence(self, state, key),
            Action::PersonDecides { key, word } => {
                uncertain::person_decides(self, state, key, word);
            }
            Action::PoisonKills { node } => world::node_dies(state, node),
            Action::NodeDies { node } => {
                state.spent.deaths += 1;
                world::node_dies(state, node);
            }
            Action::NodeStarts { node } => state.nodes[node].down = false,
            Action::NodePauses { node } => {
                state.spent.pauses += 1;
                state.nodes[node].paused = true;
            }
            Action::NodeResumes { node } => state.nodes[node].paused = false,
            Action::IdleEnds { node, slot } => world::idle_ends(state, node, slot),
            Action::DatabaseRestarts => {
                state.spent.restarts += 1;
                world::connections_break(self, state);
            }
            Action::Replicates => state.standby = state.db,
            Action::FailsOver => world::fails_over(self, state),
            Action::Replay { key, force } => world::replay(self, state, key, force),
            Action::ReplayReads { key, force } => world::replay_reads(state, key, force),
            Action::ReplayOpens => world::replay_opens(self, state),
            Action::Purge { key } => world::purge(self, state, key),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(&self.scope)
    }
}
