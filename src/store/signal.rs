//! Wake-ups across nodes. Losing one costs latency only: polling is the truth.

use std::sync::Arc;

use tokio::sync::Notify;

use super::connection::{Connection, Purpose, connect};
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
    ///
    /// # Errors
    ///
    /// No connection, or no session for it; then polling is all there is.
    pub(crate) async fn listen(&self, wake: Arc<Notify>) -> Result<Signal, StoreError> {
        let settings = self.0.settings.with_session().ok_or_else(|| {
            StoreError::Unavailable("a session that is lent hears nothing".into())
        })?;
        let purpose = Purpose {
            listens: Some(("oncehook_work", wake)),
            ..Purpose::default()
        };
        let tls = tls::connector(settings)?;
        let connection = connect(settings, &tls, purpose, &self.0.runtime).await?;
        Ok(Signal(connection))
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
