//! Whether the connections are what the configuration takes them for.

use std::time::Duration;

use tokio_postgres::{Client, SimpleQueryMessage};

use super::settings::Sessions;
use super::{Store, StoreError};

/// A pool with room for one transaction only makes the second question wait.
const ANSWERED: Duration = Duration::from_secs(2);

impl Store {
    /// Looks, once, whether `database.pooling` fits what `database.url` leads to: while one
    /// connection is inside a transaction, another one asks for its session. A busy pooler may go
    /// unnoticed here; one that is found out is one for certain.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the setting to change; or the database cannot be asked.
    pub async fn check_pooling(&self) -> Result<(), StoreError> {
        let looked = self
            .0
            .pooling_fits
            .get_or_try_init(|| self.look_at_pooling());
        looked.await.copied()
    }

    async fn look_at_pooling(&self) -> Result<(), StoreError> {
        let (one, other) = (self.admin().await?, self.admin().await?);
        let own = session(one.client(), "").await?;
        // Dropped unclean: nothing that goes wrong below comes back to the pool.
        other.set_unclean(true);
        let taken = session(other.client(), "BEGIN;")
            .await
            .map_err(in_transaction)?;
        let lent = match self.0.settings.sessions {
            Sessions::Lent => false,
            Sessions::Own if taken == own => true,
            Sessions::Own => {
                match tokio::time::timeout(ANSWERED, session(one.client(), "")).await {
                    Ok(again) => again? != own,
                    // Slow, which proves nothing.
                    Err(_) => false,
                }
            }
        };
        other.client().batch_execute("ROLLBACK").await?;
        other.set_unclean(false);
        if lent {
            return Err(StoreError::Refused(
                "database.url leads to a pooler that lends a session for one transaction only: set \
                 database.pooling = \"transaction\", or use the pooler's session mode"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// The process id of the session that answers.
async fn session(client: &Client, before: &str) -> Result<String, StoreError> {
    let answer = client
        .simple_query(&format!("{before} SELECT pg_backend_pid()"))
        .await?;
    Ok(answer
        .iter()
        .find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
        .unwrap_or_default())
}

/// PgBouncer's statement mode refuses transactions with a protocol violation.
fn in_transaction(error: StoreError) -> StoreError {
    let refused = error
        .sqlstate()
        .is_some_and(|code| *code == tokio_postgres::error::SqlState::PROTOCOL_VIOLATION);
    if refused {
        return StoreError::Refused(
            "database.url leads to a pooler that refuses transactions: use its transaction mode with \
             database.pooling = \"transaction\", or its session mode"
                .into(),
        );
    }
    error
}
