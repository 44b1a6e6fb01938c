//! Forward-only migrations under a lock, with a history of their own in schema `oncehook`.

use super::connection::KEEPALIVES;
use super::{Settings, StoreError, tls};

mod embedded {
    #![allow(missing_docs, clippy::pedantic, reason = "generated")]
    refinery::embed_migrations!("src/store/migrations");
}

const HISTORY: &str = "oncehook.schema_history";

/// Applies what is pending; returns the names applied. Any number of nodes may call it at once.
///
/// # Errors
///
/// [`StoreError::Migration`] when one fails (nothing of it stays), or when the database is newer
/// than this program.
pub async fn run(settings: &Settings) -> Result<Vec<String>, StoreError> {
    let (mut client, task) = client(settings).await?;
    let result = locked(&mut client).await;
    drop(client);
    task.abort();
    result
}

async fn locked(client: &mut tokio_postgres::Client) -> Result<Vec<String>, StoreError> {
    // A session lock: the connection is ours alone and closes with it.
    client
        .batch_execute("SELECT pg_advisory_lock(hashtext('oncehook.migrate'))")
        .await?;
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
        .query_one("SELECT to_regclass($1) IS NOT NULL", &[&HISTORY])
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

async fn client(
    settings: &Settings,
) -> Result<(tokio_postgres::Client, tokio::task::JoinHandle<()>), StoreError> {
    let (client, connection) = settings
        .config
        .connect(tls::connector(settings)?)
        .await
        .map_err(|error| StoreError::Unavailable(super::connection::describe_connect(&error)))?;
    let task = tokio::spawn(async move { drop(connection.await) });
    client.batch_execute(KEEPALIVES).await?;
    Ok((client, task))
}
