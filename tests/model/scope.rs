//! What is explored: several small worlds instead of a single huge one.

use oncehook::domain::OnUnknown;

use crate::state::{COPIES, KEYS, Spent};

/// What runs an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `sql` or `function`: inside the settle transaction.
    Transactional,
    /// A call to a receiver that honours effect keys (`on_unknown = "retry"`).
    Http,
    /// A call to one that ignores them and can be asked (`on_unknown = "probe"`).
    Probed,
    /// A call to one that can neither (`on_unknown = "hold"`).
    Held,
}

impl Kind {
    pub(crate) fn on_unknown(self) -> OnUnknown {
        match self {
            Self::Transactional | Self::Http => OnUnknown::Retry,
            Self::Probed => OnUnknown::Probe,
            Self::Held => OnUnknown::Hold,
        }
    }

    /// Whether each call applies.
    pub(crate) fn ignores_keys(self) -> bool {
        matches!(self, Self::Probed | Self::Held)
    }
}

/// How commits reach a standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replication {
    /// There is none.
    None,
    /// Later, any prefix of the commits.
    Asynchronous,
    /// COMMIT waits for it.
    Synchronous,
}

/// One world and its bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    pub(crate) name: &'static str,
    /// What it is about, for the table.
    pub(crate) about: &'static str,
    /// The handler of each event.
    pub(crate) kinds: &'static [Kind],
    /// Requests as (event, content); empty: the events are stored already.
    pub(crate) requests: &'static [(u8, u8)],
    pub(crate) replication: Replication,
    pub(crate) nodes: usize,
    /// Leases at once per node.
    pub(crate) slots: usize,
    /// Failed tries that spend the retry budget.
    pub(crate) tries: u8,
    /// Losses alone that make a delivery dead.
    pub(crate) crashes: u8,
    /// Whether a handler may say "permanent".
    pub(crate) permanent: bool,
    /// The event whose handler kills its process, every time.
    pub(crate) poison: Option<u8>,
    /// Bounds of faults and commands.
    pub(crate) bounds: Spent,
}

const NOTHING: Spent = Spent {
    deaths: 0,
    pauses: 0,
    cuts: 0,
    restarts: 0,
    failovers: 0,
    give_backs: 0,
    replays: 0,
    purges: 0,
    probes: 0,
    decisions: 0,
};

const SMALL: Scope = Scope {
    name: "",
    about: "",
    kinds: &[],
    requests: &[],
    replication: Replication::None,
    nodes: 2,
    slots: 1,
    tries: 2,
    crashes: 3,
    permanent: false,
    poison: None,
    bounds: NOTHING,
};

use Kind::{Held, Http, Probed, Transactional};

pub(crate) const SCOPES: [Scope; 11] = [
    Scope {
        name: "ingest",
        about: "two writers; a sender, one who sends other content under the same key, a neighbour sent twice",
        kinds: &[Transactional, Transactional],
        requests: &[(0, 0), (0, 1), (1, 0), (1, 0)],
        nodes: 0,
        bounds: Spent {
            deaths: 1,
            cuts: 1,
            restarts: 1,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "dispatch",
        about: "two nodes, one transactional delivery",
        kinds: &[Transactional],
        bounds: Spent {
            deaths: 1,
            pauses: 1,
            cuts: 1,
            restarts: 1,
            give_backs: 1,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "http",
        about: "two nodes, one call to a receiver that honours keys",
        kinds: &[Http],
        tries: 3,
        permanent: true,
        bounds: Spent {
            deaths: 1,
            pauses: 1,
            cuts: 2,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "probe",
        about: "two nodes, one call to a receiver that ignores keys and can be asked",
        kinds: &[Probed],
        tries: 3,
        permanent: true,
        bounds: Spent {
            deaths: 1,
            pauses: 1,
            probes: 2,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "hold",
        about: "two nodes, one call to a receiver that ignores keys and cannot be asked; people decide",
        kinds: &[Held],
        tries: 3,
        permanent: true,
        bounds: Spent {
            deaths: 1,
            pauses: 1,
            cuts: 1,
            decisions: 2,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "given-up",
        about: "two nodes, one such call; people decide, or give it up and replay it",
        kinds: &[Held],
        bounds: Spent {
            deaths: 1,
            pauses: 1,
            replays: 1,
            decisions: 2,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "poison",
        about: "two nodes of two leases each; an event that kills its process, and its neighbour",
        kinds: &[Transactional, Transactional],
        slots: 2,
        tries: 3,
        poison: Some(0),
        bounds: Spent {
            deaths: 2,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "replay",
        about: "two nodes, a call and a transactional delivery; commands while work is live",
        kinds: &[Http, Transactional],
        permanent: true,
        tries: 1,
        bounds: Spent {
            deaths: 1,
            replays: 2,
            purges: 1,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "failover",
        about: "a sender, one with other content, two nodes with a call; an asynchronous standby is promoted",
        kinds: &[Http],
        requests: &[(0, 0), (0, 1)],
        replication: Replication::Asynchronous,
        tries: 1,
        bounds: Spent {
            pauses: 1,
            failovers: 1,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "failover-sync",
        about: "a sender, a duplicate, other content, one node; a synchronous standby is promoted",
        kinds: &[Transactional],
        requests: &[(0, 0), (0, 0), (0, 1)],
        replication: Replication::Synchronous,
        nodes: 1,
        bounds: Spent {
            cuts: 1,
            failovers: 1,
            ..NOTHING
        },
        ..SMALL
    },
    Scope {
        name: "whole",
        about: "from three requests (two events, one conflict) to a call and a transactional outcome, two nodes",
        kinds: &[Http, Transactional],
        requests: &[(0, 0), (0, 1), (1, 0)],
        tries: 1,
        bounds: Spent {
            deaths: 1,
            replays: 1,
            ..NOTHING
        },
        ..SMALL
    },
];

impl Scope {
    pub(crate) fn named(name: &str) -> Self {
        SCOPES
            .into_iter()
            .find(|scope| scope.name == name)
            .unwrap_or_else(|| panic!("no scope is called {name:?}"))
    }

    /// The same with every fault that it knows allowed `more` times more.
    ///
    /// Asynchronous failovers stay as they are: with two, the scope did not end in ten minutes.
    pub(crate) fn with_more_faults(mut self, more: u8) -> Self {
        let again = self.replication == Replication::Synchronous;
        let Spent {
            deaths,
            pauses,
            cuts,
            restarts,
            failovers,
            ..
        } = &mut self.bounds;
        for bound in [deaths, pauses, cuts, restarts] {
            if *bound > 0 {
                *bound += more;
            }
        }
        if again && *failovers > 0 {
            *failovers += more;
        }
        if self.poison.is_some() {
            // So that faults alone still do not reach the cap.
            self.crashes += more;
        }
        self
    }

    pub(crate) fn keys(&self) -> usize {
        assert!(self.kinds.len() <= KEYS && self.requests.len() <= COPIES);
        self.kinds.len()
    }

    /// Faults that can cost a delivery its lease.
    pub(crate) fn losses_max(&self) -> u8 {
        let bounds = self.bounds;
        bounds.deaths + bounds.pauses + bounds.cuts + bounds.restarts + bounds.failovers
    }
}
