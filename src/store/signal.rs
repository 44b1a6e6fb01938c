//! Wake-ups across nodes. Losing one costs latency only: polling is the truth.

use std::sync::Arc;

use tokio::sync::Notify;

use super::connection::{Connection, connect};
use super::{Store, StoreError, tls};

/// A connection of its own that hears and sends wake-ups, off every commit path.
#[derive(Debug)]
pub(crate) struct Signal(Connection);

impl Store {
    /// Whether there is a way to a session that can hear wake-ups.
    pub(crate) fn hears(&self) -> bool {
        self.0.settings.with_session().is_some()
    }

    /// Connects and listens; `wake` is notified by every wake-up and when the connection ends.
    /// `None` without a session for it: then polling is all there is.
    pub(crate) async fn listen(&self, wake: Arc<Notify>) -> Result<Option<Signal>, StoreError> {
        let Some(settings) = self.0.settings.with_session() else {
            return Ok(None);
        };
        let connection = connect(
            settings,
            &tls::connector(settings)?,
            Some(wake),
            &self.0.runtime,
        )
        .await?;
        connection
            .client()
            .batch_execute("LISTEN oncehook_work")
            .await?;
        Ok(Some(Signal(connection)))
    }
}

impl Signal {
    /// Tells the other nodes that there is work.
    pub(crate) async fn send(&self) -> Result<(), StoreError> {
        Ok(self
            .0
            .client()
            .batch_execute("NOTIFY oncehook_work")
            .await?)
    }

    /// Whether the connection is gone and must be made again.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
