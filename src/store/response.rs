//! The answers of operations: written with the outcome that they belong to, emptied when their time is over.

use uuid::Uuid;

use crate::domain::operation::Response;

use super::transaction::{Transaction, expect_rows};
use super::{Store, StoreError};

const INSERT: &str = include_str!("sql/response_insert.sql");
const PURGE: &str = include_str!("sql/response_purge.sql");

/// Answers that one step of the keeper empties.
const PURGE_STEP: i64 = 500;

/// The answer of one run.
#[derive(Debug)]
pub(crate) struct NewResponse<'r> {
    pub(crate) event_id: Uuid,
    pub(crate) handler_id: i32,
    pub(crate) run: i16,
    pub(crate) response: &'r Response,
}

/// Writes the answers of runs that this transaction ends. For webhooks there are none, and nothing is sent.
pub(crate) async fn write(
    transaction: &Transaction<'_>,
    responses: &[NewResponse<'_>],
) -> Result<(), StoreError> {
    if responses.is_empty() {
        return Ok(());
    }
    let events: Vec<Uuid> = responses.iter().map(|r| r.event_id).collect();
    let handlers: Vec<i32> = responses.iter().map(|r| r.handler_id).collect();
    let runs: Vec<i16> = responses.iter().map(|r| r.run).collect();
    let statuses: Vec<i32> = responses.iter().map(|r| r.response.status.into()).collect();
    let headers: Vec<serde_json::Value> = responses.iter().map(|r| headers(r.response)).collect();
    let bodies: Vec<&[u8]> = responses.iter().map(|r| r.response.body.as_ref()).collect();
    let written = transaction
        .execute(
            INSERT,
            &[&events, &handlers, &runs, &statuses, &headers, &bodies],
        )
        .await?;
    expect_rows("response_insert", written, responses.len())
}

/// As they are stored: an array of [name, value].
pub(super) fn headers(response: &Response) -> serde_json::Value {
    serde_json::json!(response.headers)
}

impl Store {
    /// Empties answers whose horizon has passed, in short transactions; returns how many.
    pub(crate) async fn purge_responses(&self) -> Result<u64, StoreError> {
        let connection = self.admin().await?;
        let mut purged = 0;
        loop {
            let step = connection.execute_alone(PURGE, &[&PURGE_STEP]).await?;
            purged += step;
            if step == 0 {
                return Ok(purged);
            }
        }
    }
}
