//! The sources and handlers a node works with right now; swapped as a whole on reload.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::domain::operation::{Response, Told};
use crate::domain::{DecidedBy, EffectKey, Ending, OnUnknown, Routes};
use crate::provider::Source;
use crate::store::delivery::{Lease, LeasedEvent};
use crate::store::ledger::OtherDatabase;
use crate::store::registry::SqlFunction;
use crate::store::{Store, StoreError};

use super::{Calls, External, HandlerSpec};

/// A handler with what was found out about it at start.
#[derive(Debug)]
pub(crate) struct ActiveHandler {
    pub(crate) id: i32,
    /// The name under which it was first registered; part of its effect keys.
    pub(crate) first_name: String,
    pub(crate) spec: HandlerSpec,
    /// The checked function of a `sql` handler.
    pub(crate) sql: Option<SqlFunction>,
    /// What makes the calls of a handler whose work is done outside our database.
    pub(crate) outside: Option<Outside>,
    /// Another handler settles its calls: their effect keys are kept.
    pub(crate) settled: bool,
}

impl ActiveHandler {
    /// How long a call may be under way from its claim on; `None` where nothing leaves the database.
    pub(crate) fn in_flight(&self) -> Option<Duration> {
        self.outside.as_ref().map(|_| self.spec.lease)
    }

    /// What the client of an operation is answered: what it was told, or an answer that is made up.
    pub(crate) fn response(
        &self,
        ending: Ending,
        by: DecidedBy,
        resource: Option<&str>,
        told: &Told,
    ) -> Option<Response> {
        let spec = self.spec.operation.as_ref()?;
        let given = match ending {
            Ending::Succeeded | Ending::Failed | Ending::Skipped => told.response.clone(),
            Ending::Dead | Ending::Cancelled => None,
        };
        Some(if let Some(given) = given {
            given.fitted(&spec.headers)
        } else {
            let external_id = told.external_id.as_deref();
            Response::made_up(&self.spec.name, ending, by, resource, external_id)
        })
    }

    pub(crate) fn on_unknown(&self) -> OnUnknown {
        self.spec.kind.on_unknown()
    }
}

/// What makes calls.
#[derive(Clone)]
pub(crate) enum Outside {
    Http(Arc<Calls>),
    Code(Arc<dyn External>),
    /// The function of a `sql` handler with a database of its own.
    Sql(Arc<OtherDatabase>),
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Http(_) => "Http",
            Self::Code(_) => "Code",
            Self::Sql(_) => "Sql",
        })
    }
}

/// One consistent set.
#[derive(Debug, Default)]
pub(crate) struct Active {
    pub(crate) sources: HashMap<String, (i32, Arc<Source>)>,
    pub(crate) handlers: BTreeMap<i32, Arc<ActiveHandler>>,
    pub(crate) routes: Routes,
    /// Sources of operations, each with its handler, which alone gets its events.
    pub(crate) operations: HashMap<i32, i32>,
}

/// Current and first name of a source.
type Names = (String, String);

/// Holds the current set.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    active: RwLock<Arc<Active>>,
    /// Every source in the database, also those no longer configured: their events still run.
    names: RwLock<HashMap<i32, Names>>,
}

impl Registry {
    /// The current set; cheap.
    pub(crate) fn current(&self) -> Arc<Active> {
        Arc::clone(&self.active.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Swaps the set. Work already claimed ends under the old one.
    pub(crate) fn swap(&self, active: Active) {
        *self.active.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(active);
    }

    /// Makes sure that every source of the leases has a known name.
    pub(crate) async fn learn_names(
        &self,
        store: &Store,
        leases: &[Lease],
    ) -> Result<(), StoreError> {
        let missing = {
            let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
            leases
                .iter()
                .filter_map(|l| l.event.as_ref())
                .any(|e| !names.contains_key(&e.source_id))
        };
        if missing {
            let all = store.source_names().await?;
            let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
            // Only what is missing: a reload may have learnt newer names meanwhile.
            for (id, found) in all {
                names.entry(id).or_insert(found);
            }
        }
        Ok(())
    }

    /// Takes over the names after a rename. They are never forgotten in between: a batch that has
    /// learnt its names reads them again while its handlers run.
    pub(crate) fn rename(&self, all: HashMap<i32, (String, String)>) {
        self.names
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(all);
    }

    /// Source name and effect key of a lease.
    pub(crate) fn identify(
        &self,
        lease: &Lease,
        event: &LeasedEvent,
        handler: &ActiveHandler,
    ) -> Option<(String, EffectKey)> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let (name, first_name) = names.get(&event.source_id)?;
        let key = EffectKey::derive(
            first_name,
            &event.key,
            &handler.first_name,
            lease.generation,
        );
        Some((name.clone(), key))
    }
}
