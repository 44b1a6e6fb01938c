//! What the model knows: the database and its copy, the nodes, the senders, the receiver.
//!
//! Everything is small and `Copy`: a state is a few hundred bytes and is hashed as a whole.

use std::hash::{Hash, Hasher};

/// Most events (keys) of a scope.
pub(crate) const KEYS: usize = 3;
/// Most requests of a scope.
pub(crate) const COPIES: usize = 5;
/// Ingest transactions at once.
pub(crate) const WRITERS: usize = 2;
/// Nodes that dispatch.
pub(crate) const NODES: usize = 2;
/// Leases at once per node.
pub(crate) const SLOTS: usize = 2;
/// Most runs of one (event, handler): the first and its replays.
pub(crate) const RUNS: usize = 3;

/// How a run ended: `domain::Ending`, the dead ones by their reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Ending {
    /// No outcome.
    #[default]
    None,
    Succeeded,
    /// Retry budget spent.
    DeadBudget,
    /// A permanent error.
    DeadPermanent,
    /// Lost too often while it ran alone.
    DeadPoison,
    /// The payload was dropped by retention.
    DeadExpired,
    /// A person gave it up.
    GivenUp,
}

impl Ending {
    pub(crate) fn is_dead(self) -> bool {
        !matches!(self, Self::None | Self::Succeeded)
    }
}

/// State of a row of `delivery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Live {
    /// No row.
    #[default]
    None,
    Ready,
    Leased,
    /// A call was perhaps made, and its result is not known.
    Uncertain,
}

/// A row of `delivery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Delivery {
    pub(crate) live: Live,
    pub(crate) run: u8,
    pub(crate) generation: u8,
    pub(crate) failures: u8,
    pub(crate) suspect: bool,
    pub(crate) losses_alone: u8,
    /// The lease token that the statements compare; 0 when not leased.
    pub(crate) token: u8,
    /// Which claim leased it (ghost): tells a stale writer even where tokens are equal.
    pub(crate) claim: u8,
    /// Whether the lease has ended by the database's clock.
    pub(crate) ended: bool,
    /// Whether `in_flight_until` has passed by the database's clock.
    pub(crate) landed: bool,
    /// `call_token`, as its claim: whose result is not known; 0 when not uncertain.
    pub(crate) call: u8,
    /// `probe_token`: who asked last; 0 for nobody.
    pub(crate) probe: u8,
}

/// Everything the database holds of one event key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Row {
    /// Events stored under the key.
    pub(crate) events: u8,
    /// The event's id; a further one after a lost suffix.
    pub(crate) id: u8,
    /// Content of the first copy.
    pub(crate) content: u8,
    /// Whether the payload is there.
    pub(crate) payload: bool,
    /// Contents recorded as conflicts, one bit each.
    pub(crate) conflicts: u8,
    pub(crate) delivery: Delivery,
    /// Generation of the newest run.
    pub(crate) generation: u8,
    /// Outcomes by run, from run 1.
    pub(crate) outcomes: [Ending; RUNS],
    /// Outcome rows by run.
    pub(crate) outcome_rows: [u8; RUNS],
    /// What the transactional handler wrote, by run: a plain insert, counted.
    pub(crate) effects: [u8; RUNS],
    /// A late answer is kept: it was done.
    pub(crate) late_done: bool,
    /// Claims of which a late "no" is kept, one bit each.
    pub(crate) late_no: u16,
    /// The claim of a call that may be under way though a person has ended its run; 0 for none.
    pub(crate) flight: u8,
}

/// The committed content of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Database {
    pub(crate) rows: [Row; KEYS],
    /// Only used without `Guard::RandomToken`: tokens from a sequence.
    pub(crate) sequence: u8,
}

/// What an answer to the sender said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Acknowledged {
    /// No 2xx was sent.
    #[default]
    No,
    /// Stored, or known with equal content.
    Stored,
    /// Known with other content.
    Conflict,
}

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum At {
    /// With the sender, who will send it (again).
    #[default]
    Sender,
    /// In an ingest transaction.
    Writer,
    /// The sender has its 2xx.
    Done,
}

/// A request: which event and content it carries is the scope's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Copied {
    pub(crate) at: At,
    /// What the last 2xx said, whether it arrived or not (ghost).
    pub(crate) acknowledged: Acknowledged,
}

/// Where an ingest transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) enum Stage {
    #[default]
    Idle,
    /// Inserts keys, this item next.
    Reserving(u8),
    /// Reads the losers next.
    Reading,
    /// Every fate is known, COMMIT is next.
    Ready,
}

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) enum Fate {
    #[default]
    Unknown,
    New,
    Lost,
    Duplicate,
    Conflict,
}

/// An ingest transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Writer {
    pub(crate) stage: Stage,
    /// Its requests, in the order in which keys are inserted.
    pub(crate) batch: [u8; 2],
    pub(crate) items: u8,
    pub(crate) fates: [Fate; 2],
    /// Tries of this batch.
    pub(crate) tries: u8,
    /// Keys committed when its first statement began, one bit each.
    pub(crate) snapshot: u8,
}

/// What a handler says of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Said {
    Done,
    Retry,
    Permanent,
    /// A call without a definite answer.
    Unknown,
}

/// What a person says of an uncertain delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Succeeded,
    Retry,
    Dead,
}

/// Where a lease stands in the node that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) enum Phase {
    #[default]
    Free,
    /// Claimed, not begun.
    Held,
    /// Settle transaction open, row locked, the handler has run in it.
    Locked,
    /// The connection broke while COMMIT was on its way; the server is still at it.
    OldOpen(Said),
    /// The old transaction has ended, the node does not know how.
    Unsure,
    /// A call is on its way; `true`: the receiver got it.
    Called(bool),
    /// The call's answer is known and not settled yet.
    Answered(Said),
}

/// A lease as its holder remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Slot {
    pub(crate) phase: Phase,
    pub(crate) key: u8,
    /// The event's id.
    pub(crate) id: u8,
    pub(crate) run: u8,
    pub(crate) generation: u8,
    pub(crate) failures: u8,
    pub(crate) suspect: bool,
    pub(crate) losses_alone: u8,
    pub(crate) token: u8,
    pub(crate) claim: u8,
    /// Its lease ended while the node was paused, or a failover forgot it (ghost).
    pub(crate) late: bool,
}

/// What a receiver says of an effect key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Told {
    Applied,
    Absent,
    /// It cannot tell.
    Nothing,
}

/// A node that asks about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Ask {
    /// Key + 1 of the event; 0 when it asks nothing.
    pub(crate) at: u8,
    pub(crate) token: u8,
    /// Whether the call could no longer be under way when it began to ask.
    pub(crate) landed: bool,
    pub(crate) told: Option<Told>,
}

/// A node that dispatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Node {
    pub(crate) down: bool,
    pub(crate) paused: bool,
    pub(crate) slots: [Slot; SLOTS],
    pub(crate) ask: Ask,
}

impl Node {
    pub(crate) fn acts(&self) -> bool {
        !self.down && !self.paused
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.phase == Phase::Free)
    }
}

/// The receiver of calls. Whether it honours keys is the handler's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Receiver {
    /// Effect keys it has seen, sorted; 0 is none.
    pub(crate) seen: [u16; 4],
    /// Effects applied per event.
    pub(crate) applied: [u8; KEYS],
    /// Calls that have been sent and not arrived, per event.
    pub(crate) wire: [u8; KEYS],
}

/// The operator in the middle of a replay that reads before it inserts; only without
/// `Guard::ReplayReadsAfterInsert`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Operator {
    /// Key + 1 of the event at work; 0 is none.
    pub(crate) at: u8,
    pub(crate) last_run: u8,
    pub(crate) last: Ending,
    pub(crate) generation: u8,
    pub(crate) force: bool,
}

/// Faults and commands so far; the scope bounds each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Spent {
    pub(crate) deaths: u8,
    pub(crate) pauses: u8,
    pub(crate) cuts: u8,
    pub(crate) restarts: u8,
    pub(crate) failovers: u8,
    pub(crate) give_backs: u8,
    pub(crate) replays: u8,
    pub(crate) purges: u8,
    pub(crate) probes: u8,
    pub(crate) decisions: u8,
}

/// What the model saw happen that must not (ghost).
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Broken {
    /// A row was changed by a claim that was no longer its holder.
    pub(crate) stale_change: bool,
    /// A handler ran under a lease that was no longer its own.
    pub(crate) stale_run: bool,
    /// A handler ran for a run that has its outcome.
    pub(crate) run_again: bool,
    /// A try was recorded as lost that had been committed.
    pub(crate) false_loss: bool,
    /// An ingest transaction was thrown back although nothing failed.
    pub(crate) abort: bool,
    /// A delivery died for want of its payload.
    pub(crate) starved: bool,
}

/// One state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) db: Database,
    /// What a promoted standby has; kept only where the scope has one.
    pub(crate) standby: Database,
    pub(crate) copies: [Copied; COPIES],
    pub(crate) writers: [Writer; WRITERS],
    pub(crate) nodes: [Node; NODES],
    pub(crate) receiver: Receiver,
    pub(crate) operator: Operator,
    /// Claims so far: never reset, so every path is finite.
    pub(crate) claims: u8,
    /// Event ids so far.
    pub(crate) ids: u8,
    /// Replays per event, and how many of them were forced (ghost).
    pub(crate) replays: [(u8, u8); KEYS],
    pub(crate) spent: Spent,
    pub(crate) broken: Broken,
}

/// Nodes are alike, and so are writers: states that differ only in which is which are one.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.db.hash(hasher);
        self.standby.hash(hasher);
        self.copies.hash(hasher);
        let mut writers = self.writers;
        writers.sort_unstable();
        writers.hash(hasher);
        let mut nodes = self.nodes;
        for node in &mut nodes {
            node.slots.sort_unstable();
        }
        nodes.sort_unstable();
        nodes.hash(hasher);
        self.receiver.hash(hasher);
        self.operator.hash(hasher);
        (self.claims, self.ids, self.replays, self.spent, self.broken).hash(hasher);
    }
}
