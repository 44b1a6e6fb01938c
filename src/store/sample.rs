//! The sample that `dev` works with: a ledger table and the function that books into it.

use super::{Settings, StoreError, migrate};

const INSTALL: &str = include_str!("sample_install.sql");

/// Creates schema `app` with `app.ledger` and `app.book_payment` where they are missing. Running
/// it twice is safe.
///
/// # Errors
///
/// When the database refuses a statement; nothing of it stays.
pub async fn install(settings: &Settings) -> Result<(), StoreError> {
    migrate::execute(settings, INSTALL).await
}
