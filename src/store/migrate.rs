//! Forward-only migrations under a lock, with a history of their own in schema `oncehook`.
//!
//! Each is one transaction with the lock and its line of history, which expects nothing of its session:
//! a pooler may lend another one for the next.

use std::time::Duration;

use refinery::Migration;
use tokio::runtime::Handle;
use tokio_postgres::Row;

use super::connection::{Connection, Purpose, connect};
use super::transaction::{Limits, Mode, Transaction};
use super::{Settings, StoreError, tls};

mod embedded {
    #![allow(missing_docs, clippy::pedantic, reason = "generated")]
    refinery::embed_migrations!("src/store/migrations");
}

/// What scripts depend on, beside what every transaction of ours sets. The time is for a host that
/// vanished behind a pooler.
const FOR_SCRIPTS: &str = "SET LOCAL statement_timeout TO DEFAULT; SET LOCAL lock_timeout TO DEFAULT; \
     SET LOCAL standard_conforming_strings TO DEFAULT; SET LOCAL idle_in_transaction_session_timeout = '10min'";

const LOCK: &str = "SELECT pg_try_advisory_xact_lock(hashtext('oncehook.migrate'))";
const HISTORY: &str = "CREATE SCHEMA IF NOT EXISTS oncehook;
    CREATE TABLE IF NOT EXISTS oncehook.schema_history
      (version int4 PRIMARY KEY, name varchar(255), applied_on varchar(255), checksum varchar(255))";
const HAS_HISTORY: &str = "SELECT to_regclass('oncehook.schema_history') IS NOT NULL";
const APPLIED: &str =
    "SELECT version, name, checksum FROM oncehook.schema_history ORDER BY version";
const RECORD: &str = "INSERT INTO oncehook.schema_history (version, name, applied_on, checksum)
    VALUES ($1, $2, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), $3)";

/// Between tries for the lock. Who waits holds no session meanwhile.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// What one transaction did.
enum Step {
    /// Another process has the lock.
    Locked,
    Applied(String),
    /// Nothing was pending.
    UpToDate,
}

/// Applies what is pending; returns the names applied. Any number of nodes may call it at once.
///
/// # Errors
///
/// [`StoreError::Migration`] when one fails (nothing of it stays), or when the database is newer
/// than this program.
pub async fn run(settings: &Settings) -> Result<Vec<String>, StoreError> {
    let connection = connection(settings).await?;
    let migrations = migrations();
    let mut applied = Vec::new();
    loop {
        let transaction = Transaction::with(Mode::Work, &connection, FOR_SCRIPTS).await?;
        let done = step(&transaction, &migrations).await;
        match transaction.end(done).await? {
            Step::Locked => tokio::time::sleep(LOCK_PAUSE).await,
            Step::Applied(name) => applied.push(name),
            Step::UpToDate => return Ok(applied),
        }
    }
}

async fn step(transaction: &Transaction<'_>, migrations: &[Migration]) -> Result<Step, StoreError> {
    if !is_true(&transaction.query(LOCK, &[]).await?) {
        return Ok(Step::Locked);
    }
    let client = transaction.connection().client();
    client.batch_execute(HISTORY).await?;
    let history = transaction.query(APPLIED, &[]).await?;
    expect_known(&history, migrations)?;
    let Some(next) = pending_of(migrations, &history).next() else {
        return Ok(Step::UpToDate);
    };
    let failed = |error: &dyn std::error::Error| {
        StoreError::Migration(format!("{next}: {}", super::error::chain(error)))
    };
    let script = next.sql().unwrap_or_default();
    client
        .batch_execute(script)
        .await
        .map_err(|error| failed(&error))?;
    let checksum = next.checksum().to_string();
    transaction
        .execute(RECORD, &[&next.version(), &next.name(), &checksum])
        .await
        .map_err(|error| failed(&error))?;
    Ok(Step::Applied(next.to_string()))
}

/// Whether what was applied is what this program has, so that it does not go on from elsewhere.
fn expect_known(history: &[Row], migrations: &[Migration]) -> Result<(), StoreError> {
    for row in history {
        let text = |column| row.get::<_, Option<&str>>(column).unwrap_or_default();
        let (version, name): (i32, &str) = (row.get(0), text(1));
        let known = migrations.iter().find(|known| known.version() == version);
        let Some(known) = known else {
            return Err(StoreError::Migration(format!(
                "the database is newer than this program: it has V{version}__{name}"
            )));
        };
        if known.name() != name || known.checksum().to_string() != text(2) {
            return Err(StoreError::Migration(format!(
                "V{version}__{name} was applied with another text than this program has"
            )));
        }
    }
    Ok(())
}

fn pending_of<'m>(
    migrations: &'m [Migration],
    history: &[Row],
) -> impl Iterator<Item = &'m Migration> {
    let applied: Vec<i32> = history.iter().map(|row| row.get(0)).collect();
    migrations
        .iter()
        .filter(move |migration| !applied.contains(&migration.version()))
}

fn is_true(rows: &[Row]) -> bool {
    rows.first().is_some_and(|row| row.get(0))
}

/// Names of the migrations not yet applied.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn pending(settings: &Settings) -> Result<Vec<String>, StoreError> {
    let connection = connection(settings).await?;
    let transaction = Transaction::snapshot(&connection, Limits::SHORT).await?;
    let read = async {
        if is_true(&transaction.query(HAS_HISTORY, &[]).await?) {
            transaction.query(APPLIED, &[]).await
        } else {
            Ok(Vec::new())
        }
    }
    .await;
    let history = transaction.end(read).await?;
    let migrations = migrations();
    Ok(pending_of(&migrations, &history)
        .map(ToString::to_string)
        .collect())
}

/// Versions of the migrations that this program has.
pub(super) fn versions() -> Vec<i32> {
    migrations().iter().map(Migration::version).collect()
}

/// Runs a script in one transaction.
pub(super) async fn execute(settings: &Settings, script: &str) -> Result<(), StoreError> {
    let connection = connection(settings).await?;
    let transaction = Transaction::with(Mode::Work, &connection, FOR_SCRIPTS).await?;
    let done = connection.client().batch_execute(script).await;
    transaction.end(done.map_err(StoreError::from)).await
}

/// In the order of their versions.
fn migrations() -> Vec<Migration> {
    let mut migrations = embedded::migrations::runner().get_migrations().clone();
    migrations.sort_by_key(Migration::version);
    migrations
}

pub(super) async fn connection(settings: &Settings) -> Result<Connection, StoreError> {
    let settings = settings.with_session().unwrap_or(settings);
    let runtime =
        Handle::try_current().map_err(|error| StoreError::Unavailable(error.to_string()))?;
    connect(
        settings,
        &tls::connector(settings)?,
        Purpose::default(),
        &runtime,
    )
    .await
}
