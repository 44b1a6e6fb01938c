//! Which calls effect keys name, and what later events say of them.
//!
//! A key is kept before its call leaves, so an event that carries it finds it, be it quicker than the call's own
//! answer. What it says is written under the lock of the delivery's row, or of its place where it is not live: whoever
//! decides about the delivery, or opens its next run, either sees it or is seen.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::domain::{EffectKey, Ending, late::Word};

use super::StoreError;
use super::connection::Connection;
use super::delivery::Lease;
use super::transaction::{Transaction, expect_rows};

const ENDED: &str = include_str!("sql/effect_ended.sql");
const FIND: &str = include_str!("sql/effect_find.sql");
const FREE: &str = include_str!("sql/effect_free.sql");
const KEEP: &str = include_str!("sql/effect_keep.sql");
const RESERVE: &str = include_str!("sql/effect_reserve.sql");
const TOLD: &str = include_str!("sql/effect_told.sql");
const TRIES: &str = include_str!("sql/effect_tries.sql");

/// Keeps which calls these effect keys name. Returns those whose effect is known to be there.
///
/// # Errors
///
/// None of the calls may leave.
pub(crate) async fn keep(
    connection: &Connection,
    calls: &[(EffectKey, &Lease)],
) -> Result<HashSet<Uuid>, StoreError> {
    let keys: Vec<Vec<u8>> = calls.iter().map(|(key, _)| key.bytes()).collect();
    let events: Vec<Uuid> = calls.iter().map(|(_, l)| l.event_id).collect();
    let handlers: Vec<i32> = calls.iter().map(|(_, l)| l.handler_id).collect();
    let generations: Vec<i16> = calls.iter().map(|(_, l)| l.generation).collect();
    let run = |lease: &Lease| (lease.run > 1 || lease.attempt() > 1).then_some(lease.run);
    let runs: Vec<Option<i16>> = calls.iter().map(|(_, l)| run(l)).collect();
    // As durable as the claim: a crash of PostgreSQL must not forget it.
    let rows = connection
        .query_by_index(KEEP, &[&keys, &events, &handlers, &generations, &runs])
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The delivery whose calls an effect key names.
#[derive(Debug, Clone)]
pub(crate) struct Called {
    pub(crate) event_id: Uuid,
    pub(crate) handler_id: i32,
    pub(crate) generation: i16,
    /// Source and key of its event, for people.
    pub(crate) event: String,
}

/// Those of the keys that are known.
pub(crate) async fn find(
    transaction: &Transaction<'_>,
    keys: &[&EffectKey],
) -> Result<HashMap<Vec<u8>, Called>, StoreError> {
    let bytes: Vec<Vec<u8>> = keys.iter().map(|key| key.bytes()).collect();
    let rows = transaction.query(FIND, &[&bytes]).await?;
    let text = |text: Option<String>| text.unwrap_or_else(|| "(gone)".to_owned());
    Ok(rows
        .iter()
        .map(|row| {
            let called = Called {
                event_id: row.get("event_id"),
                handler_id: row.get("handler_id"),
                generation: row.get("generation"),
                event: format!("{} {}", text(row.get("source")), text(row.get("key"))),
            };
            (row.get("effect_key"), called)
        })
        .collect())
}

/// How many tries there were under the key of a live run, whose row must be locked.
pub(crate) async fn tries(
    transaction: &Transaction<'_>,
    called: &Called,
    run: i16,
) -> Result<i64, StoreError> {
    let (event_id, handler_id) = (called.event_id, called.handler_id);
    let rows = transaction
        .query(TRIES, &[&event_id, &handler_id, &run, &called.generation])
        .await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// How the last run under a key ended.
#[derive(Debug, Clone)]
pub(crate) struct EndedRun {
    pub(crate) run: i16,
    pub(crate) ending: Ending,
    pub(crate) decided_by: String,
    pub(crate) resource: Option<String>,
}

/// The last run under the key, if it has ended.
pub(crate) async fn ended(
    transaction: &Transaction<'_>,
    called: &Called,
) -> Result<Option<EndedRun>, StoreError> {
    let (event_id, handler_id) = (called.event_id, called.handler_id);
    let rows = transaction
        .query(ENDED, &[&event_id, &handler_id, &called.generation])
        .await?;
    Ok(rows.first().and_then(|row| {
        Some(EndedRun {
            run: row.get("run"),
            ending: Ending::named(row.get("result"))?,
            decided_by: row.get("decided_by"),
            resource: row.get("resource"),
        })
    }))
}

/// Takes the place of a delivery that is not live; `false`: it is live by now.
pub(crate) async fn reserve(
    transaction: &Transaction<'_>,
    called: &Called,
) -> Result<bool, StoreError> {
    let taken = transaction
        .execute(RESERVE, &[&called.event_id, &called.handler_id])
        .await?;
    Ok(taken == 1)
}

/// Gives it back.
pub(crate) async fn free(transaction: &Transaction<'_>, called: &Called) -> Result<(), StoreError> {
    let freed = transaction
        .execute(FREE, &[&called.event_id, &called.handler_id])
        .await?;
    expect_rows("effect_free", freed, 1)
}

/// What an event says of a call.
#[derive(Debug, Clone)]
pub(crate) struct Told<'t> {
    pub(crate) run: i16,
    /// The lease of the call that it decides; `None`: of every call, or of none.
    pub(crate) call: Option<Uuid>,
    /// Who says it, for people.
    pub(crate) text: &'t str,
    pub(crate) word: Word,
    pub(crate) resource: Option<&'t str>,
    pub(crate) external_id: Option<&'t str>,
    /// The event that says it.
    pub(crate) by: Uuid,
}

/// Keeps what an event says of a call; the same is kept once.
pub(crate) async fn told(
    transaction: &Transaction<'_>,
    called: &Called,
    told: &Told<'_>,
) -> Result<(), StoreError> {
    transaction
        .execute(
            TOLD,
            &[
                &called.event_id,
                &called.handler_id,
                &told.run,
                &told.call,
                &told.text,
                &told.word.as_str(),
                &told.resource,
                &told.external_id,
                &told.by,
            ],
        )
        .await?;
    Ok(())
}
