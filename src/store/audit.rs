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
    before: Option<&serde_json::Value>,
    after: &serde_json::Value,
) -> Result<(), StoreError> {
    transaction
        .execute(
            INSERT,
            &[&actor, &action, &subject, &reason, &before, &after],
        )
        .await?;
    Ok(())
}
