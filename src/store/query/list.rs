//! Pages of events, newest first.

use jiff::Timestamp;
use uuid::Uuid;

use super::super::transaction::{Limits, Transaction};
use super::super::{Store, StoreError};
use super::{EventFilter, EventPage, EventSummary, PAGE_MAX, time_opt};

const LIST: &str = include_str!("../sql/event_list.sql");

impl Store {
    /// A page of events, newest first.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        let limit = filter.limit.clamp(1, PAGE_MAX);
        let pattern = filter.event_type.as_deref().map(like_pattern);
        let connection = self.queries().await?;
        let snapshot = Transaction::snapshot(&connection, Limits::SHORT).await?;
        let rows = snapshot
            .query(
                LIST,
                &[
                    &filter.source,
                    &pattern,
                    &filter.state,
                    &filter.before,
                    &i64::from(limit),
                ],
            )
            .await?;
        snapshot.commit().await?;
        let events: Vec<EventSummary> = rows
            .iter()
            .map(|row| EventSummary {
                event_id: row.get("id"),
                source: row.get("name"),
                key: row.get("key"),
                event_type: row.get("type"),
                entity: row.get("entity"),
                state: row.get("state"),
                received_at: minted_at(row.get("id")),
                occurred_at: time_opt(row, "occurred_at"),
            })
            .collect();
        let next = events
            .last()
            .filter(|_| events.len() == usize::from(limit))
            .map(|e| e.event_id.to_string());
        Ok(EventPage { events, next })
    }
}

/// A `UUIDv7` carries the time of its transaction in its first 48 bits, in milliseconds.
fn minted_at(id: Uuid) -> Timestamp {
    i64::try_from(id.as_u128() >> 80)
        .ok()
        .and_then(|millis| Timestamp::from_millisecond(millis).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// `*` becomes any run of characters, everything else stands for itself.
pub(in super::super) fn like_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 2);
    for character in text.chars().filter(|c| *c != '\0') {
        match character {
            '*' => pattern.push('%'),
            '%' | '_' | '\\' => {
                pattern.push('\\');
                pattern.push(character);
            }
            other => pattern.push(other),
        }
    }
    pattern
}
