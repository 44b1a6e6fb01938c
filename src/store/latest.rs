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

/// The newest version applied to an object.
pub(crate) async fn read(
    connection: &Connection,
    handler_id: i32,
    entity: &str,
    read_from: &str,
) -> Result<Option<String>, StoreError> {
    let rows = connection
        .query_alone(READ, &[&handler_id, &entity, &read_from])
        .await?;
    Ok(rows.first().and_then(|row| row.get(0)))
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
