//! One intent: reserved, begun again, waited for, read.

use std::sync::Arc;

use tokio::time::Instant;
use uuid::Uuid;

use crate::domain::EventKey;
use crate::domain::operation::{IdempotencyKey, Record, Seen};
use crate::ingest::{Fate, Origin, StoredRequest, Submission, Unavailable};
use crate::store::StoreError;

use super::awaited::Waited;
use super::{ActiveOperation, Engine};

/// What the reservation of a key found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// The event that the key names.
    pub event_id: Uuid,
    /// Whether it is new, the same or another intent.
    pub seen: Seen,
}

impl ActiveOperation {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.source.source.name
    }
}

impl Engine {
    /// Reserves the key for this intent, unless it names one. Dropping the future stops nothing.
    ///
    /// # Errors
    ///
    /// [`Unavailable`]: nothing is reserved, or nobody knows; the client should come again.
    pub async fn reserve(
        &self,
        operation: &ActiveOperation,
        client: &str,
        key: &IdempotencyKey,
        request: StoredRequest,
    ) -> Result<Reserved, Unavailable> {
        let source = &operation.source;
        let none = Unavailable { reason: "no_key" };
        let key = key.event_key(client).map_err(|_| none)?;
        let item = operation.item(key, &request.body);
        let submission = Submission {
            source_id: source.id,
            source: Arc::clone(&source.source),
            request,
            items: vec![item],
            routes: Vec::new(),
            origin: Origin::Request,
        };
        let receipt = self.submit(source, submission).await?;
        let (event_id, fate) = receipt.items.first().copied().ok_or(none)?;
        let seen = match fate {
            Fate::New => Seen::New,
            Fate::Duplicate => Seen::Same,
            Fate::Conflict => Seen::Other,
        };
        Ok(Reserved { event_id, seen })
    }

    /// What is stored under an operation's key.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn operation_record(
        &self,
        operation: &ActiveOperation,
        key: &EventKey,
    ) -> Result<Option<Record>, StoreError> {
        self.0.awaited.record(operation.source.id, key).await
    }

    /// Waits until nothing of the event is under way any more, at most until then.
    pub async fn wait_for(&self, event: Uuid, until: Instant) -> Waited {
        self.0.awaited.wait(event, until).await
    }

    /// Begins another run of an operation that has failed without effect; whether it did.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn begin_again(
        &self,
        operation: &ActiveOperation,
        event: Uuid,
        run: i16,
    ) -> Result<bool, StoreError> {
        let begun = self.0.store.run_again(event, run, operation.handler);
        let begun = begun.await?;
        if begun {
            self.0.wake.work();
        }
        Ok(begun)
    }

    /// Answers all who wait that the node is on its way out.
    pub fn release_waiting(&self) {
        self.0.awaited.close();
    }
}
