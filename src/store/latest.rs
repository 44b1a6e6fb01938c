//! What was applied last to each business object, per handler.

use std::collections::HashMap;

use uuid::Uuid;

use super::StoreError;
use super::connection::Connection;
use super::transaction::{Transaction, expect_rows};

const LOCK: &str = include_str!("sql/latest_lock.sql");
const READ: &str = include_str!("sql/latest_read.sql");
const APPLY: &str = include_str!("sql/latest_apply.sql");

/// An event that was applied.
#[derive(Debug, Clone)]
pub(crate) struct Applied {
    pub(crate) entity: String,
    /// A decimal number.
    pub(crate) version: String,
    pub(crate) event_id: Uuid,
}

/// Locks the objects for the rest of the transaction; gives the newest version applied to each.
pub(crate) async fn lock(
    transaction: &Transaction<'_>,
    handler_id: i32,
    entities: &[&str],
    read_from: &str,
) -> Result<HashMap<String, String>, StoreError> {
    let rows = transaction
        .query(LOCK, &[&handler_id, &entities, &read_from])
        .await?;
    let applied = |row: &tokio_postgres::Row| Some((row.get(0), row.get::<_, Option<String>>(1)?));
    Ok(rows.iter().filter_map(applied).collect())
}

/// How an object stands before a call about it.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The newest version that was applied.
    pub(crate) version: Option<String>,
    /// Another call about it is out, or its result is not known.
    pub(crate) under_way: bool,
}

/// Looks before the call of an event at a handler; `lane` is where its object's events wait for each other.
pub(crate) async fn read(
    connection: &Connection,
    (handler_id, event_id): (i32, Uuid),
    entity: &str,
    read_from: &str,
    lane: Option<&str>,
) -> Result<Standing, StoreError> {
    let rows = connection
        .query_by_index(READ, &[&handler_id, &entity, &read_from, &event_id, &lane])
        .await?;
    expect_rows("latest_read", rows.len() as u64, 1)?;
    Ok(Standing {
        version: rows.first().and_then(|row| row.get("version")),
        under_way: rows.first().is_some_and(|row| row.get("under_way")),
    })
}

/// Keeps what was applied; at most one event per object.
pub(crate) async fn apply(
    transaction: &Transaction<'_>,
    handler_id: i32,
    applied: &[Applied],
    read_from: &str,
) -> Result<(), StoreError> {
    if applied.is_empty() {
        return Ok(());
    }
    let entities: Vec<&str> = applied.iter().map(|a| a.entity.as_str()).collect();
    let versions: Vec<&str> = applied.iter().map(|a| a.version.as_str()).collect();
    let events: Vec<Uuid> = applied.iter().map(|a| a.event_id).collect();
    let changed = transaction
        .execute(
            APPLY,
            &[&handler_id, &entities, &versions, &events, &read_from],
        )
        .await?;
    expect_rows("latest_apply", changed, applied.len())
}
