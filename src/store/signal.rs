//! Wake-ups across nodes. Losing one costs latency only: polling is the truth.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, broadcast};
use uuid::Uuid;

use super::connection::{Connection, Purpose, connect};
use super::{Store, StoreError, tls};

/// That operations have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationEnd {
    /// This one, on this node.
    One(Uuid),
    /// Some, on this node or another: who waits looks.
    Some,
}

/// Ends of operations that one who waits may be behind before it is told to look at all of them.
const ENDS: usize = 4_096;

/// What a wake-up says: that there is work, that something was paused or resumed, that operations have ended.
#[derive(Debug)]
pub(crate) struct Wake {
    work: Notify,
    switched: AtomicBool,
    ends: broadcast::Sender<OperationEnd>,
    /// Other nodes have not heard of the last ones.
    untold: Notify,
}

impl Default for Wake {
    fn default() -> Self {
        Self {
            work: Notify::default(),
            switched: AtomicBool::default(),
            ends: broadcast::Sender::new(ENDS),
            untold: Notify::default(),
        }
    }
}

impl Wake {
    /// There is work.
    pub(crate) fn work(&self) {
        self.work.notify_one();
    }

    /// Something was paused or resumed, or may have been.
    pub(crate) fn switched(&self) {
        self.switched.store(true, Ordering::Release);
        self.work.notify_one();
    }

    /// Resolves at the next wake-up, of either kind.
    pub(crate) async fn notified(&self) {
        self.work.notified().await;
    }

    /// Whether something was paused or resumed since the last time that this was asked.
    pub(crate) fn take_switched(&self) -> bool {
        self.switched.swap(false, Ordering::AcqRel)
    }

    /// An operation has ended, and its transaction has committed.
    pub(crate) fn operation_ended(&self, event_id: Uuid) {
        // Nobody may be waiting here.
        drop(self.ends.send(OperationEnd::One(event_id)));
        self.untold.notify_one();
    }

    /// Ends of operations from now on. One who falls behind looks at all.
    pub(crate) fn operation_ends(&self) -> broadcast::Receiver<OperationEnd> {
        self.ends.subscribe()
    }

    /// Resolves when operations have ended here that other nodes were not told of.
    pub(crate) async fn operations_untold(&self) {
        self.untold.notified().await;
    }

    /// A notification came on this channel, or none can come any more.
    pub(super) fn heard(&self, channel: &str) {
        match channel {
            FLOW => self.switched(),
            ENDED => drop(self.ends.send(OperationEnd::Some)),
            _ => self.work(),
        }
    }
}

/// The channel of operations that have ended.
const ENDED: &str = "oncehook_ended";

/// The channel of pauses; [`super::flow`] speaks on it.
const FLOW: &str = "oncehook_flow";

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
    pub(crate) async fn listen(&self, wake: Arc<Wake>) -> Result<Signal, StoreError> {
        let settings = self.0.settings.with_session().ok_or_else(|| {
            StoreError::Unavailable("a session that is lent hears nothing".into())
        })?;
        let purpose = Purpose {
            listens: Some((&["oncehook_work", FLOW, ENDED], wake)),
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

    /// Tells the other nodes that operations have ended.
    pub(crate) async fn send_ended(&self) -> Result<(), StoreError> {
        Ok(self
            .0
            .client()
            .batch_execute("NOTIFY oncehook_ended")
            .await?)
    }

    /// Whether the connection is gone and must be made again.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
