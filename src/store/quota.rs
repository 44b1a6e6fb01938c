//! How much of each handler a claim may take.

use std::time::Duration;

use crate::domain::{ByPriority, Cap, Priority, flow};

/// What one handler may claim now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota {
    pub(crate) handler_id: i32,
    pub(crate) count: u16,
    /// The priorities that the count is divided among.
    pub(crate) waiting: ByPriority<bool>,
    /// Decides how the shares are rounded; uniform in `0.0..1.0`.
    pub(crate) draw: f64,
    pub(crate) lease: Duration,
    /// How long a call may be under way; `None` where nothing leaves the database.
    pub(crate) in_flight: Option<Duration>,
    /// Kept by [`super::cap`]; a plain claim does not look at it.
    pub(crate) cap: Cap,
}

impl Quota {
    pub(super) fn in_flight_s(&self) -> Option<f64> {
        self.in_flight.map(|time| time.as_secs_f64())
    }

    /// How many of each priority are asked for.
    pub(crate) fn shares(&self) -> ByPriority<u16> {
        flow::split(self.count, self.waiting, self.draw)
    }
}

/// The claim's arguments: an entry per handler and priority.
#[derive(Debug, Default)]
pub(super) struct Shares {
    pub(super) handlers: Vec<i32>,
    pub(super) priorities: Vec<i16>,
    pub(super) counts: Vec<i32>,
    pub(super) leases: Vec<f64>,
    pub(super) in_flight: Vec<Option<f64>>,
}

impl Shares {
    pub(super) fn of(quotas: &[Quota]) -> Self {
        let mut shares = Self::default();
        for quota in quotas {
            for (priority, count) in Priority::ALL.into_iter().zip(quota.shares()) {
                if count > 0 {
                    shares.handlers.push(quota.handler_id);
                    shares.priorities.push(priority.number());
                    shares.counts.push(i32::from(count));
                    shares.leases.push(quota.lease.as_secs_f64());
                    shares.in_flight.push(quota.in_flight_s());
                }
            }
        }
        shares
    }
}
