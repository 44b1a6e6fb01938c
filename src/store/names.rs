//! The ids under which this node has registered its names, proved on every connection that
//! writes them, and once more on those that were open before a name came.
//!
//! A server that took over without the last commits of its predecessor may not know a name that
//! was registered there; the next name registered here would be given its id, and events of one
//! source would be stored as another's. So a connection is not lent where the ids are not ours.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use super::StoreError;
use super::connection::Connection;
use super::registry::Registered;

const UNKNOWN: &str = include_str!("sql/registry_unknown.sql");

/// Every registration since this process began. None is ever taken out: requests and leases of
/// before a reload are still written under the ids that they were taken in with.
#[derive(Debug, Default)]
pub(super) struct Names(RwLock<Known>);

#[derive(Debug, Default, Clone)]
struct Known {
    sources: BTreeSet<(i32, String)>,
    handlers: BTreeSet<(i32, String)>,
}

impl Known {
    fn count(&self) -> usize {
        self.sources.len() + self.handlers.len()
    }
}

impl Names {
    pub(super) fn add(&self, sources: &[Registered], handlers: &[Registered]) {
        let pair = |name: &Registered| (name.id, name.first_name.clone());
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.sources.extend(sources.iter().map(pair));
        known.handlers.extend(handlers.iter().map(pair));
    }

    /// Sources that others have registered, whose events this node handles too.
    pub(super) fn add_sources(&self, sources: impl Iterator<Item = (i32, String)>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.sources.extend(sources);
    }

    /// How many there are. None is ever taken out, so another number means that there are new ones.
    pub(super) fn count(&self) -> usize {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .count()
    }

    /// Whether this server knows the names under the same ids.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] when it does not; only a restart helps.
    pub(super) async fn prove(&self, connection: &Connection) -> Result<(), StoreError> {
        let known = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let count = known.count();
        let (source_ids, sources): (Vec<i32>, Vec<String>) = known.sources.into_iter().unzip();
        let (handler_ids, handlers): (Vec<i32>, Vec<String>) = known.handlers.into_iter().unzip();
        let unknown = connection
            .query_alone(UNKNOWN, &[&source_ids, &sources, &handler_ids, &handlers])
            .await?;
        match unknown.first() {
            None => {
                connection.set_proved(count);
                Ok(())
            }
            Some(row) => Err(StoreError::Unavailable(format!(
                "this server does not know {:?} as it was registered, it has lost commits; restart this node",
                row.get::<_, &str>(0)
            ))),
        }
    }
}
