//! The guards of the product, each of which can be taken out of the model.

/// One guard: a condition, an order of statements or a key without which something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// `event_key`'s primary key, `ON CONFLICT DO NOTHING` (`ingest_reserve.sql`).
    UniqueKey,
    /// Losers are read by a statement of its own, with a fresh snapshot (`ingest_known.sql`).
    SecondStatement,
    /// Keys of a batch are inserted in sorted order (`ingest_reserve.sql`).
    SortedKeys,
    /// Equal content is a duplicate, other content a conflict (`ingest::judge`).
    DigestComparison,
    /// The answer leaves after COMMIT (`ingest::batch`).
    AnswerAfterCommit,
    /// A warning while COMMIT is in flight counts as not stored (`store::transaction::commit`).
    WarningIsNotDurable,
    /// A duplicate's transaction writes, so it waits for the standby (`ingest_receipts.sql`).
    DuplicateReceipt,

    /// A settle transaction locks by lease token (`delivery_lock.sql`).
    TokenAtLock,
    /// Outcome, retry and removal compare the token again and count rows (`delivery_finish.sql`,
    /// `delivery_retry.sql`, `delivery_remove.sql`).
    TokenAtFinish,
    /// Giving a lease back compares the token (`delivery_give_back.sql`).
    TokenAtGiveBack,
    /// Tokens are random, not from a sequence of the database (`delivery_claim.sql`).
    RandomToken,
    /// Effect, outcome and delete commit together (`dispatch::work::batch_once`).
    OneTransaction,
    /// Outcomes are read under the lock, before handlers run (`outcome_present.sql`).
    OutcomeRead,
    /// `outcome`'s primary key (`schema.sql`).
    UniqueOutcome,
    /// After a COMMIT without a reply the row is read under its lock (`delivery_lock_any.sql`).
    ReadBack,
    /// A lease is taken only after its end by the database's clock (`delivery_expired.sql`).
    LeaseEnd,
    /// A call's lease is longer than its time-out (`config::handler`).
    LeaseOutlivesCall,
    /// The leases of dead nodes are taken (`dispatch::reap`).
    Reaper,

    /// A suspect runs while nothing else does in its node (`dispatch::claim`).
    SuspectAlone,
    /// Only losses while alone count towards the cap (`domain::delivery::next`).
    LossesAloneOnly,
    /// The cap on losses alone (`domain::delivery::next`).
    CrashCap,

    /// The effect key is derived, not drawn for each try (`domain::effect`).
    DerivedEffectKey,
    /// It is derived from the event key, not from the event's id (`domain::effect`).
    EffectKeyFromEventKey,

    /// A replay opens no run while one is live (`replay_open.sql`, `replay_arm.sql`).
    ReplayRefusedWhileLive,
    /// Outcomes are read after the insert, by a statement of its own (`store::replay`).
    ReplayReadsAfterInsert,
    /// A replay of what did not succeed keeps the effect key (`store::replay`).
    ReplayKeepsEffectKey,
    /// A forced replay of what succeeded gets a new one (`store::replay`).
    ForcedRaisesGeneration,
    /// A replay without payload is refused (`store::replay::has_payload`).
    ReplayNeedsPayload,
    /// Payloads are dropped only without live work. Retention is still to come; the gate is what it
    /// will have to keep.
    PayloadGate,

    /// A call without a definite answer is not sent again (`domain::delivery::next`).
    UnknownIsUncertain,
    /// Nor is one whose lease ended (`domain::delivery::next`, `dispatch::reap`).
    LostIsUncertain,
    /// "Absent" counts only if it was asked when the call could no longer be under way
    /// (`uncertain_claim.sql`, `domain::uncertain::probed`).
    AbsentAfterFlight,
    /// It counts only from the last who asked (`dispatch::reconcile`, `uncertain_release.sql`).
    LastProbe,
    /// A late answer ends an uncertain delivery (`uncertain_evidence.sql`, `dispatch::reconcile`).
    EvidenceDecides,
    /// A late "no" counts of its own call only (`uncertain_evidence.sql`).
    NoOfItsOwnCall,
    /// A call that was not begun in time is not begun (`dispatch::call::run`).
    BegunInTime,
    /// A person's retry waits until the call can no longer be under way (`uncertain_release.sql`).
    RetryAfterFlight,
    /// A replay of what a person ended waits for that, too (`replay_last.sql`, `store::replay`).
    ReplayAfterFlight,
}

impl Guard {
    fn bit(self) -> u64 {
        1 << (self as u8)
    }
}

/// Guards taken out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Removed(u64);

impl Removed {
    pub(crate) fn of(guards: &[Guard]) -> Self {
        Self(guards.iter().fold(0, |bits, guard| bits | guard.bit()))
    }

    pub(crate) fn has(self, guard: Guard) -> bool {
        self.0 & guard.bit() == 0
    }
}

/// A guard, and where its absence shows.
pub(crate) struct Mutant {
    pub(crate) guard: Guard,
    /// Guards that are taken out too, because they stand in front of this one.
    pub(crate) with: &'static [Guard],
    pub(crate) scope: &'static str,
    /// What breaks; with `guard` in place and only `with` taken out it must hold.
    pub(crate) breaks: &'static str,
}

const fn alone(guard: Guard, scope: &'static str, breaks: &'static str) -> Mutant {
    Mutant {
        guard,
        with: &[],
        scope,
        breaks,
    }
}

const fn second(
    guard: Guard,
    with: &'static [Guard],
    scope: &'static str,
    breaks: &'static str,
) -> Mutant {
    Mutant {
        guard,
        with,
        scope,
        breaks,
    }
}

/// Every guard once.
pub(crate) const MUTANTS: [Mutant; 38] = [
    alone(Guard::UniqueKey, "ingest", "one event per key"),
    alone(
        Guard::SecondStatement,
        "ingest",
        "no batch is thrown back without a fault",
    ),
    alone(Guard::SortedKeys, "ingest", "no deadlock"),
    alone(
        Guard::DigestComparison,
        "ingest",
        "what was acknowledged is stored",
    ),
    alone(
        Guard::AnswerAfterCommit,
        "ingest",
        "what was acknowledged is stored",
    ),
    alone(
        Guard::WarningIsNotDurable,
        "failover-sync",
        "what was acknowledged is stored",
    ),
    alone(
        Guard::DuplicateReceipt,
        "failover-sync",
        "what was acknowledged is stored",
    ),
    alone(
        Guard::TokenAtLock,
        "dispatch",
        "no handler runs under a lost lease",
    ),
    second(
        Guard::TokenAtFinish,
        &[Guard::TokenAtLock],
        "dispatch",
        "a stale token changes nothing",
    ),
    alone(
        Guard::TokenAtGiveBack,
        "dispatch",
        "a stale token changes nothing",
    ),
    alone(
        Guard::RandomToken,
        "failover",
        "a stale token changes nothing",
    ),
    alone(
        Guard::OneTransaction,
        "dispatch",
        "one effect per successful run",
    ),
    second(
        Guard::OutcomeRead,
        &[Guard::ReplayReadsAfterInsert],
        "replay",
        "a finished run is not run again",
    ),
    second(
        Guard::UniqueOutcome,
        &[Guard::ReplayReadsAfterInsert, Guard::OutcomeRead],
        "replay",
        "one outcome per run",
    ),
    alone(
        Guard::ReadBack,
        "dispatch",
        "a committed try is not called lost",
    ),
    alone(Guard::LeaseEnd, "http", "one call of a run at a time"),
    alone(
        Guard::LeaseOutlivesCall,
        "http",
        "one call of a run at a time",
    ),
    alone(Guard::Reaper, "dispatch", "rest means done"),
    alone(
        Guard::SuspectAlone,
        "poison",
        "only the poison dies of lost leases",
    ),
    alone(
        Guard::LossesAloneOnly,
        "poison",
        "only the poison dies of lost leases",
    ),
    alone(Guard::CrashCap, "poison", "losses alone stay below the cap"),
    alone(
        Guard::DerivedEffectKey,
        "http",
        "one outside effect per intent",
    ),
    alone(
        Guard::EffectKeyFromEventKey,
        "failover",
        "one outside effect per intent",
    ),
    alone(
        Guard::ReplayRefusedWhileLive,
        "replay",
        "one call of a run at a time",
    ),
    alone(
        Guard::ReplayReadsAfterInsert,
        "replay",
        "no delivery of a finished run",
    ),
    alone(
        Guard::ReplayKeepsEffectKey,
        "replay",
        "one outside effect per intent",
    ),
    alone(
        Guard::ForcedRaisesGeneration,
        "replay",
        "a forced replay takes effect",
    ),
    alone(
        Guard::ReplayNeedsPayload,
        "replay",
        "nothing dies for want of its payload",
    ),
    alone(
        Guard::PayloadGate,
        "replay",
        "nothing dies for want of its payload",
    ),
    alone(
        Guard::UnknownIsUncertain,
        "hold",
        "one outside effect per intent",
    ),
    alone(
        Guard::LostIsUncertain,
        "probe",
        "one outside effect per intent",
    ),
    alone(
        Guard::AbsentAfterFlight,
        "probe",
        "one outside effect per intent",
    ),
    alone(Guard::LastProbe, "probe", "one outside effect per intent"),
    alone(Guard::EvidenceDecides, "hold", "rest means done"),
    alone(
        Guard::NoOfItsOwnCall,
        "probe",
        "an outcome says what the receiver did",
    ),
    alone(Guard::BegunInTime, "probe", "one outside effect per intent"),
    alone(
        Guard::RetryAfterFlight,
        "hold",
        "one outside effect per intent",
    ),
    alone(
        Guard::ReplayAfterFlight,
        "given-up",
        "one outside effect per intent",
    ),
];
