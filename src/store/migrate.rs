//! Forward-only migrations under a lock, with a history of their own in schema `oncehook`.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::connection::KEEPALIVES;
use super::settings::Sessions;
use super::{Settings, StoreError, tls};

mod embedded {
    #![allow(missing_docs, clippy::pedantic, reason = "generated")]
    refinery::embed_migrations!("src/store/migrations");
}

const HISTORY: &str = "oncehook.schema_history";
/// Between tries for the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// For the second connection, which a pooler with room for one would keep waiting.
const SECOND_CONNECTION: Duration = Duration::from_secs(30);

/// Applies what is pending; returns the names applied. Any number of nodes may call it at once.
///
/// # Errors
///
/// [`StoreError::Migration`] when one fails (nothing of it stays), or when the database is newer
/// than this program.
pub async fn run(settings: &Settings) -> Result<Vec<String>, StoreError> {
    let (holder, holding) = client(settings).await?;
    lock(&holder).await?;
    let (mut client, task) = tokio::time::timeout(SECOND_CONNECTION, client(settings))
        .await
        .map_err(|_| {
            StoreError::Unavailable(
                "migrations need two connections at once, and the second was not lent within 30 s"
                    .into(),
            )
        })??;
    let result = locked(&mut client).await;
    drop((client, holder));
    task.abort();
    holding.abort();
    result
}

/// Holds the lock until the connection ends, in a transaction of its own: a session may be lent to
/// another after each transaction of the migrations. Who waits holds no session meanwhile.
async fn lock(holder: &Client) -> Result<(), StoreError> {
    loop {
        // The time is for a host that vanished behind a pooler. A lock that ended too early costs
        // an error: each migration is one transaction with its line of history.
        let answer = holder
            .simple_query(
                "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '10min'; \
                 SELECT pg_try_advisory_xact_lock(hashtext('oncehook.migrate'))",
            )
            .await?;
        let locked = answer.iter().any(
            |message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t")),
        );
        if locked {
            return Ok(());
        }
        holder.batch_execute("ROLLBACK").await?;
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

async fn locked(client: &mut Client) -> Result<Vec<String>, StoreError> {
    client
        .batch_execute("CREATE SCHEMA IF NOT EXISTS oncehook")
        .await?;
    let report = embedded::migrations::runner()
        .set_migration_table_name(HISTORY)
        .run_async(client)
        .await
        .map_err(|error| StoreError::Migration(super::error::chain(&error)))?;
    Ok(report
        .applied_migrations()
        .iter()
        .map(ToString::to_string)
        .collect())
}

/// Names of the migrations not yet applied.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn pending(settings: &Settings) -> Result<Vec<String>, StoreError> {
    let (mut client, task) = client(settings).await?;
    let exists: bool = client
        .query_typed_one(
            "SELECT to_regclass($1) IS NOT NULL",
            &[(&HISTORY, Type::TEXT)],
        )
        .await?
        .get(0);
    let runner = embedded::migrations::runner();
    let applied = if exists {
        let mut runner = embedded::migrations::runner();
        runner
            .set_migration_table_name(HISTORY)
            .get_applied_migrations_async(&mut client)
            .await
            .map_err(|error| StoreError::Migration(super::error::chain(&error)))?
    } else {
        Vec::new()
    };
    drop(client);
    task.abort();
    Ok(runner
        .get_migrations()
        .iter()
        .filter(|migration| {
            !applied
                .iter()
                .any(|done| done.version() == migration.version())
        })
        .map(ToString::to_string)
        .collect())
}

/// Versions of the migrations that this program has.
pub(super) fn versions() -> Vec<i32> {
    let runner = embedded::migrations::runner();
    let migrations = runner.get_migrations().iter();
    migrations.map(refinery::Migration::version).collect()
}

/// Runs a script in one implicit transaction.
pub(super) async fn execute(settings: &Settings, script: &str) -> Result<(), StoreError> {
    let (client, task) = client(settings).await?;
    let result = client.batch_execute(script).await;
    drop(client);
    task.abort();
    Ok(result?)
}

async fn client(settings: &Settings) -> Result<(Client, tokio::task::JoinHandle<()>), StoreError> {
    let settings = settings.with_session().unwrap_or(settings);
    let (client, connection) = settings
        .config
        .connect(tls::connector(settings)?)
        .await
        .map_err(|error| {
            StoreError::Unreachable(settings.key, super::connection::describe_connect(&error))
        })?;
    let task = tokio::spawn(async move { drop(connection.await) });
    if settings.sessions == Sessions::Own {
        client.batch_execute(KEEPALIVES).await?;
    }
    Ok((client, task))
}
