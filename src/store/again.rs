//! A further run of an operation that has failed without any effect, for a client that came again.
//!
//! Stricter than a replay, which a person orders: nothing that a person has decided, and nothing that may have
//! had its effect, is ever run again so.

use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::{EffectKey, EventKey, Lane};

use super::lanes::LaneOf;
use super::replay::{self, ARM, LAST, OPEN};
use super::transaction::{Limits, Transaction, expect_rows};
use super::{Store, StoreError, audit};

const KEY: &str = include_str!("sql/operation_key_share.sql");

/// Why an event whose key has been renewed is not run again.
pub(super) const LATER_INTENT: &str = "its key has expired and names a later intent";

/// Keeps the event's key from being renewed until the transaction ends; `None`: it names another by now.
pub(super) async fn hold_key(
    transaction: &Transaction<'_>,
    event_id: Uuid,
) -> Result<Option<Row>, StoreError> {
    let rows = transaction.query(KEY, &[&event_id]).await?;
    Ok(rows.into_iter().next())
}

impl Store {
    /// Opens the run behind `run`, under the same effect key. `false`: somebody was quicker, or the last run is
    /// none that may be followed by another: it did not end as a dead letter by the engine's own judgement, a late
    /// answer says that it took effect, a call of it may be under way, its payload or its key is gone.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked; nothing has begun, or the caller finds it begun.
    pub async fn run_again(
        &self,
        event_id: Uuid,
        run: i16,
        handler_id: i32,
    ) -> Result<bool, StoreError> {
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let lane = match begin(&transaction, event_id, run, handler_id).await {
            Ok(Some(lane)) => {
                transaction.commit().await?;
                lane
            }
            Ok(None) => {
                transaction.undo().await;
                return Ok(false);
            }
            Err(error) => {
                transaction.rollback(&error).await;
                return match error {
                    StoreError::NotFound(_) | StoreError::Refused(_) => Ok(false),
                    error => Err(error),
                };
            }
        };
        drop(connection);
        self.look_at(lane.as_slice()).await;
        Ok(true)
    }
}

/// The lane of the new run; `None`: there is none, and the transaction is to be rolled back.
async fn begin(
    transaction: &Transaction<'_>,
    event_id: Uuid,
    run: i16,
    handler_id: i32,
) -> Result<Option<Option<LaneOf>>, StoreError> {
    let Some(key) = hold_key(transaction, event_id).await? else {
        return Ok(None);
    };
    if key.get("expired") || key.get::<_, i32>("handler_id") != handler_id {
        return Ok(None);
    }
    let name: &str = key.get("handler");
    let handler = replay::handler_by_name(transaction, name).await?;
    // The insert comes before the outcomes are read, as in a replay.
    if transaction.execute(OPEN, &[&event_id, &handler_id]).await? == 0 {
        return Ok(None);
    }
    let rows = transaction.query(LAST, &[&event_id, &handler_id]).await?;
    let Some(last) = rows.first().filter(|last| may_follow(last, run)) else {
        return Ok(None);
    };
    let Some(stored) = replay::stored_event(transaction, &[event_id]).await?.pop() else {
        return Ok(None);
    };
    let Some(next) = run.checked_add(1) else {
        return Ok(None);
    };
    let generation: i16 = last.get("generation");
    let lane = handler.lane(&stored);
    let armed = transaction
        .execute(
            ARM,
            &[
                &event_id,
                &handler_id,
                &next,
                &generation,
                &lane.as_ref().map(Lane::as_str),
            ],
        )
        .await?;
    expect_rows("replay_arm", armed, 1)?;
    let text: &str = key.get("key");
    let of_event =
        EventKey::stored(text).map_err(|error| StoreError::NotFound(error.to_string()))?;
    let effect_key = EffectKey::derive(
        key.get("first_name"),
        &of_event,
        &handler.registered.first_name,
        generation,
    );
    let client = text.split(':').next().unwrap_or_default();
    audit::record(
        transaction,
        &format!("api:{client}"),
        "operation.again",
        &event_id.to_string(),
        Some("its client came again after a failure without effect"),
        None,
        &serde_json::json!({ "handler": name, "run": next, "after": "dead", "effect_key": effect_key.as_str() }),
    )
    .await?;
    Ok(Some(lane.map(|lane| handler.place(&lane))))
}

/// Whether the last run is the one that the client was told of, and left nothing behind.
fn may_follow(last: &Row, run: i16) -> bool {
    let time = |column: &str| last.get::<_, Option<std::time::SystemTime>>(column);
    last.get::<_, i16>("run") == run
        && last.get::<_, &str>("result") == "dead"
        && last.get::<_, &str>("decided_by") != "operator"
        && time("under_way").is_none()
        && time("answered").is_none()
}
