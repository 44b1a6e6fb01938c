//! `apply_if_newer`: an event that is older than what was applied to its object is skipped.
//!
//! The comparison is made in the transaction that holds the effect, under the lock of the object's
//! row in `latest`. A call, which no transaction spans, has its lane to keep others away; and since what was stored
//! before the handler had that lane stands in none, it is not made while another about its object is under way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::{Lane, Verdict, Version, VersionBy};
use crate::store::StoreError;
use crate::store::delivery::Lease;
use crate::store::handling::{self, Part};
use crate::store::latest::{self, Applied};
use crate::store::transaction::Transaction;

use super::handler::error_text::mask;
use super::{ActiveHandler, Context};

/// A call that found another about its object under way looks again after this, more or less: the second time
/// and later after a quarter of the time that it has waited, but
const BEHIND: Duration = Duration::from_millis(500);
/// not after more. What is uncertain may be so for days.
const BEHIND_MAX: Duration = Duration::from_secs(30);

/// An event that says which object it is about and how new it is.
#[derive(Debug)]
pub(super) struct Versioned<'l> {
    pub(super) event_id: Uuid,
    pub(super) entity: &'l str,
    pub(super) version: Version,
}

impl Versioned<'_> {
    pub(super) fn applied(&self) -> Applied {
        Applied {
            entity: self.entity.to_owned(),
            version: self.version.as_str().to_owned(),
            event_id: self.event_id,
        }
    }
}

/// What the guard makes of one lease of a batch.
#[derive(Debug)]
pub(super) enum Guarded<'l> {
    /// It may run; with a version, that is kept when it is done.
    Run(Option<Versioned<'l>>),
    /// It is older than what was applied.
    Stale(Verdict),
    /// Another event about the same object is in this batch, or its call is under way: afterwards.
    Later,
}

impl Guarded<'_> {
    pub(super) fn is_stale(&self) -> bool {
        matches!(self, Self::Stale(_))
    }
}

/// Locks the objects of a batch and compares. One event per object is run, since what becomes of
/// it decides about the next.
pub(super) async fn guard<'l>(
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    leases: &[&'l Lease],
) -> Result<Vec<Guarded<'l>>, StoreError> {
    let Some(by) = &handler.spec.apply_if_newer else {
        return Ok(leases.iter().map(|_| Guarded::Run(None)).collect());
    };
    let mut versions: Vec<Option<Versioned<'l>>> = Vec::with_capacity(leases.len());
    while let Some(rest) = leases.get(versions.len()..).filter(|rest| !rest.is_empty()) {
        let part = if by.reads_body() {
            let events: Vec<Uuid> = rest.iter().map(|l| l.event_id).collect();
            handling::payloads_within(transaction, &events).await?
        } else {
            Part {
                payloads: HashMap::new(),
                read: rest.len(),
            }
        };
        versions.extend(rest.iter().take(part.read).map(|lease| {
            let payload = part.payloads.get(&lease.event_id);
            versioned(
                by,
                lease,
                payload.map(|p| p.body.as_slice()).unwrap_or_default(),
            )
        }));
    }
    let entities: Vec<&str> = versions.iter().flatten().map(|v| v.entity).collect();
    if entities.is_empty() {
        return Ok(versions.into_iter().map(Guarded::Run).collect());
    }
    let applied = latest::lock(transaction, handler.id, &entities, &by.to_string()).await?;
    let mut taken = HashSet::new();
    Ok(versions
        .into_iter()
        .map(|found| {
            let Some(this) = found else {
                return Guarded::Run(None);
            };
            if !taken.insert(this.entity) {
                return Guarded::Later;
            }
            match applied
                .get(this.entity)
                .and_then(|last| stale(&this.version, last))
            {
                Some(verdict) => Guarded::Stale(verdict),
                None => Guarded::Run(Some(this)),
            }
        })
        .collect())
}

/// Of calls that compare, the first about each object, and the rest: they would only find each other under way.
pub(super) fn one_per_object(
    handler: &Arc<ActiveHandler>,
    leases: Vec<Lease>,
) -> (Vec<Lease>, Vec<Lease>) {
    if handler.spec.apply_if_newer.is_none() {
        return (leases, Vec::new());
    }
    let mut taken = HashSet::new();
    leases.into_iter().partition(|lease| {
        let object = lease.event.as_ref().and_then(|event| event.entity.clone());
        object.is_none_or(|object| taken.insert(object))
    })
}

/// How long a call waits that found another about its object under way: not as long as another node's that found
/// this one.
pub(super) fn behind_another(lease: &Lease) -> Duration {
    behind(lease.progress.since_first, rand::random())
}

fn behind(waited: Duration, jitter: f64) -> Duration {
    let wait = (waited / 4).clamp(BEHIND, BEHIND_MAX);
    wait.mul_f64(0.5 + jitter)
}

/// The same for one call, before it is sent. Of two that were claimed at once the one that looks later sees the
/// other's lease; perhaps both do, and both wait.
pub(super) async fn guard_call<'l>(
    context: &Context,
    handler: &ActiveHandler,
    lease: &'l Lease,
    body: &[u8],
) -> Result<Guarded<'l>, StoreError> {
    let Some(by) = &handler.spec.apply_if_newer else {
        return Ok(Guarded::Run(None));
    };
    let Some(this) = versioned(by, lease, body) else {
        return Ok(Guarded::Run(None));
    };
    let connection = context.store.dispatch().await?;
    let lane = Lane::of(this.entity);
    let lane = lane.as_ref().map(Lane::as_str);
    let event = (handler.id, this.event_id);
    let found = latest::read(&connection, event, this.entity, &by.to_string(), lane).await?;
    let last = found.version;
    Ok(match last.and_then(|last| stale(&this.version, &last)) {
        Some(verdict) => Guarded::Stale(verdict),
        None if found.under_way => Guarded::Later,
        None => Guarded::Run(Some(this)),
    })
}

/// Keeps that a call was applied to its object, of which that became known later.
pub(super) async fn keep_applied(
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    lease: &Lease,
    body: &[u8],
) -> Result<(), StoreError> {
    let Some(by) = &handler.spec.apply_if_newer else {
        return Ok(());
    };
    let applied = versioned(by, lease, body).map(|this| this.applied());
    latest::apply(transaction, handler.id, applied.as_slice(), &by.to_string()).await
}

fn versioned<'l>(by: &VersionBy, lease: &'l Lease, body: &[u8]) -> Option<Versioned<'l>> {
    let event = lease.event.as_ref()?;
    Some(Versioned {
        event_id: lease.event_id,
        entity: event.entity.as_deref()?,
        version: by.version(event.occurred_at, body)?,
    })
}

/// The verdict on an event that is older than `last`. One as new as that is not stale: two changes
/// within a second may have the same time.
fn stale(version: &Version, last: &str) -> Option<Verdict> {
    // A number from a body is no more than any other text of it.
    let words = |number: &str| {
        let at = version.as_time(number);
        at.map_or_else(|| mask(number), |at| at.to_string())
    };
    version.is_older_than(last).then(|| Verdict::Skip {
        reason: format!(
            "stale: version {} is older than {}, which was applied",
            words(version.as_str()),
            words(last)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_long_looks_less_often() {
        let looks = [0, 1, 10, 60, 3_600].map(|s| behind(Duration::from_secs(s), 0.5).as_millis());
        assert_eq!(looks, [500, 500, 2_500, 15_000, 30_000]);
        assert_eq!(behind(Duration::ZERO, 0.0), BEHIND / 2);
    }
}
