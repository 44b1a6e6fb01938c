//! From a key to the event and its bytes.

use jiff::Timestamp;
use uuid::Uuid;

use crate::domain::EventKey;

use super::super::transaction::{Limits, Transaction};
use super::super::{Store, StoreError};
use super::{hex_of, time};

const FIND: &str = include_str!("../sql/event_find.sql");
const BODY: &str = include_str!("../sql/event_body.sql");

/// An event found by key.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) event_id: Uuid,
    pub(crate) key: EventKey,
    pub(crate) raw_digest: String,
    pub(crate) first_seen: Timestamp,
    pub(crate) source_id: i32,
    pub(crate) source_first_name: String,
}

impl Store {
    /// From a key, or from a provider's id when unambiguous, to the event.
    pub(crate) async fn find(&self, source: &str, key: &str) -> Result<Found, StoreError> {
        let unknown = || StoreError::NotFound(format!("source {source:?} has no event {key:?}"));
        // A NUL cannot be in any key, nor in a PostgreSQL text.
        if key.contains('\0') || source.contains('\0') || key.is_empty() {
            return Err(unknown());
        }
        let connection = self.queries().await?;
        // What is longer than any id can only be a whole key.
        let as_key = EventKey::of(key).map_or_else(|_| key.to_owned(), |id| id.as_str().to_owned());
        let as_first_part = format!("{as_key}:");
        let snapshot = Transaction::snapshot(&connection, Limits::SHORT).await?;
        let rows = snapshot
            .query(FIND, &[&source, &key, &as_first_part, &as_key])
            .await?;
        snapshot.commit().await?;
        let row = match rows.as_slice() {
            [] => return Err(unknown()),
            [row] => row,
            [first, ..] if first.get("exact") => first,
            many => {
                let keys: Vec<&str> = many.iter().map(|row| row.get("key")).collect();
                return Err(StoreError::Refused(format!(
                    "{key:?} is ambiguous in source {source:?}; give the whole key, for example {}",
                    keys.join(" or ")
                )));
            }
        };
        Ok(Found {
            event_id: row.get("event_id"),
            key: EventKey::stored(row.get::<_, &str>("key")).map_err(|_| unknown())?,
            raw_digest: hex_of(row, "raw_digest"),
            first_seen: time(row, "first_seen"),
            source_id: row.get("id"),
            source_first_name: row.get("first_name"),
        })
    }

    /// The exact bytes of the event's item.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when unknown, [`StoreError::PayloadExpired`] when the payload was
    /// dropped.
    pub async fn body(&self, source: &str, key: &str) -> Result<Vec<u8>, StoreError> {
        let found = self.find(source, key).await?;
        let connection = self.queries().await?;
        let snapshot = Transaction::snapshot(&connection, Limits::SHORT).await?;
        let rows = snapshot.query(BODY, &[&found.event_id]).await?;
        snapshot.commit().await?;
        rows.first().map(|row| row.get(0)).ok_or_else(|| {
            StoreError::PayloadExpired(format!("the payload of {} was dropped", found.key))
        })
    }
}
