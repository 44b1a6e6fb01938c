//! Who did what, and why; append-only.

use super::StoreError;
use super::transaction::Transaction;

const INSERT: &str = include_str!("sql/audit_insert.sql");

/// Writes the audit row in the transaction of the action itself.
pub(crate) async fn record(
    transaction: &Transaction<'_>,
    actor: &str,
    action: &str,
    subject: &str,
    reason: Option<&str>,
    after: &serde_json::Value,
) -> Result<(), StoreError> {
    let before: Option<serde_json::Value> = None;
    transaction
        .execute(
            INSERT,
            &[&actor, &action, &subject, &reason, &before, &after],
        )
        .await?;
    Ok(())
}
