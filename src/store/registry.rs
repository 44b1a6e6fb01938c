//! Stable small ids for configured names.

use tokio_postgres::Row;

use crate::domain::operation::Response;
use crate::domain::{DecidedBy, Ending};

use super::connection::Connection;
use super::operation::{self, NewOperation, Rules};
use super::transaction::{Limits, Transaction, is_stale_session};
use super::{Store, StoreError, audit, response};

const SOURCE: &str = include_str!("sql/source_register.sql");
const SOURCE_RENAME: &str = include_str!("sql/source_rename.sql");
const HANDLER: &str = include_str!("sql/handler_register.sql");
const HANDLER_RENAME: &str = include_str!("sql/handler_rename.sql");
const HANDLER_SETTINGS: &str = include_str!("sql/handler_settings.sql");
const FUNCTION: &str = include_str!("sql/handler_function.sql");
const RETIRE: &str = include_str!("sql/handler_retire.sql");

/// A configured name and what it was called before.
#[derive(Debug)]
pub(crate) struct Name<'a> {
    pub(crate) now: &'a str,
    pub(crate) was: Option<&'a str>,
    /// A source's id recipe; where a handler's lanes are read from, empty for none.
    pub(crate) recipe: String,
    /// What becomes of a handler's call whose result is unknown; `None` of a source.
    pub(crate) on_unknown: Option<&'static str>,
}

/// A registered name.
#[derive(Debug, Clone)]
pub(crate) struct Registered {
    pub(crate) id: i32,
    /// The name under which it was first registered: part of every effect key.
    pub(crate) first_name: String,
}

/// A `sql` handler's function.
#[derive(Debug, Clone)]
pub(crate) struct SqlFunction {
    /// Quoted, safe to put into a statement.
    pub(crate) call: String,
    /// Whether it returns jsonb (else void).
    pub(crate) answers: bool,
}

impl Store {
    /// Registers sources, handlers and operations in one transaction: all or none.
    pub(crate) async fn register(
        &self,
        sources: &[Name<'_>],
        handlers: &[Name<'_>],
        operations: &[NewOperation],
    ) -> Result<(Vec<Registered>, Vec<Registered>, Vec<Rules>), StoreError> {
        let connection = self.admin().await?;
        // Nodes that start at once wait for one another.
        let limits = Limits {
            statement: std::time::Duration::from_secs(30),
            lock: std::time::Duration::from_secs(5),
            ..Limits::SHORT
        };
        let transaction = Transaction::begin(&connection, limits).await?;
        let done = async {
            // Two nodes that start at once must not rename against each other.
            transaction
                .query(
                    "SELECT pg_advisory_xact_lock(hashtext('oncehook.registry'))",
                    &[],
                )
                .await?;
            let sources = register_sources(&transaction, sources).await?;
            let handlers = register_handlers(&transaction, handlers).await?;
            let names = (sources.as_slice(), handlers.as_slice());
            let rules = operation::register(&transaction, operations, names).await?;
            Ok((sources, handlers, rules))
        }
        .await;
        let (sources, handlers, rules) = transaction.end(done).await?;
        self.0.names.add(&sources, &handlers);
        Ok((sources, handlers, rules))
    }

    /// Whether the server behind a connection of administration, which new names are registered by
    /// too, knows our names; see [`super::names`].
    pub(crate) async fn prove_names(&self, connection: &Connection) -> Result<(), StoreError> {
        self.0.names.prove(connection).await
    }

    /// Current and first name of every source there ever was, by id.
    pub(crate) async fn source_names(
        &self,
    ) -> Result<std::collections::HashMap<i32, (String, String)>, StoreError> {
        let connection = self.admin().await?;
        let rows = connection
            .query_alone("SELECT id, name, first_name FROM oncehook.source", &[])
            .await?;
        let names = self.0.names.as_ref();
        names.add_sources(rows.iter().map(|row| (row.get(0), row.get(2))));
        Ok(rows
            .iter()
            .map(|row| (row.get(0), (row.get(1), row.get(2))))
            .collect())
    }

    /// Which of these functions a `sql` handler could not call, each with a sentence why.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn missing_functions(&self, names: &[String]) -> Result<Vec<String>, StoreError> {
        let mut missing = Vec::new();
        for name in names {
            match self.sql_function("(configured)", name).await {
                Ok(_) => {}
                Err(StoreError::Refused(_)) => missing.push(name.clone()),
                Err(other) => return Err(other),
            }
        }
        Ok(missing)
    }

    /// Looks up a `sql` handler's function.
    pub(crate) async fn sql_function(
        &self,
        handler: &str,
        name: &str,
    ) -> Result<SqlFunction, StoreError> {
        function(&*self.admin().await?, handler, name).await
    }

    /// Ends a handler: its unfinished deliveries become cancelled, and no configuration may use
    /// the name again. Audited. Returns how many deliveries were cancelled.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown name, [`StoreError::Refused`] when it is retired
    /// already and nothing is left of it.
    pub async fn retire_handler(
        &self,
        handler: &str,
        reason: &str,
        actor: &str,
    ) -> Result<u64, StoreError> {
        let connection = self.admin().await?;
        // Deliveries being settled are waited for as long as a handler may run.
        let limits = Limits {
            lock: std::time::Duration::from_mins(1),
            statement: std::time::Duration::from_mins(1),
            ..Limits::SHORT
        };
        let transaction = Transaction::begin(&connection, limits).await?;
        let done = async {
            let rows = transaction
                .query("SELECT id, retired_at IS NOT NULL, operation_of IS NOT NULL FROM oncehook.handler WHERE name = $1 FOR UPDATE", &[&handler])
                .await?;
            let Some((id, retired, serves)) = rows.first().map(|row| (row.get::<_, i32>(0), row.get::<_, bool>(1), row.get::<_, bool>(2))) else {
                return Err(StoreError::NotFound(format!("there is no handler {handler:?}")));
            };
            transaction
                .execute("UPDATE oncehook.handler SET retired_at = now() WHERE id = $1 AND retired_at IS NULL", &[&id])
                .await?;
            let made_up = serves.then(|| Response::made_up(handler, Ending::Cancelled, DecidedBy::Operator, None, None));
            let answer = made_up.as_ref();
            let status = answer.map(|answer| i32::from(answer.status));
            let (headers, body) = (answer.map(response::headers), answer.map(|answer| answer.body.as_ref()));
            let cancelled = transaction.execute(RETIRE, &[&id, &reason, &status, &headers, &body]).await?;
            // A node that had not reloaded yet may have fanned out to it since: once more is right
            // as long as there is something to cancel.
            if retired && cancelled == 0 {
                return Err(StoreError::Refused(format!("handler {handler:?} is retired already, and nothing is left of it")));
            }
            audit::record(&transaction, actor, "handler.retire", handler, Some(reason), None, &serde_json::json!({ "cancelled": cancelled })).await?;
            Ok(cancelled)
        }
        .await;
        transaction.end(done).await
    }
}

/// Looks up a `sql` handler's function in the database that it is called in.
pub(super) async fn function(
    connection: &Connection,
    handler: &str,
    name: &str,
) -> Result<SqlFunction, StoreError> {
    let wanted = || {
        format!(
            "handler {handler:?}: there is no function {name}(oncehook.delivered); create it, or give the database \
             role USAGE on its schema and EXECUTE on it"
        )
    };
    let rows = connection
        .query_alone(FUNCTION, &[&name])
        .await
        // A name that is no name at all is an error of the lookup (class 42 or 22).
        .map_err(|error| match error.sqlstate_class() {
            Some("22" | "42") if !is_stale_session(&error) => StoreError::Refused(wanted()),
            _ => error,
        })?;
    let row = rows.first().ok_or_else(|| StoreError::Refused(wanted()))?;
    let answers = match row.get::<_, &str>("returns") {
        "void" => false,
        "jsonb" => true,
        other => {
            return Err(StoreError::Refused(format!(
                "handler {handler:?}: {name} returns {other}; it must return void or jsonb"
            )));
        }
    };
    Ok(SqlFunction {
        call: row.get("call"),
        answers,
    })
}

async fn register_sources(
    transaction: &Transaction<'_>,
    names: &[Name<'_>],
) -> Result<Vec<Registered>, StoreError> {
    let mut registered = Vec::with_capacity(names.len());
    for name in names {
        if let Some(was) = name.was {
            // 0 rows: renamed already, by us earlier or by another node.
            transaction
                .execute(SOURCE_RENAME, &[&was, &name.now])
                .await?;
        }
        let rows = transaction
            .query(SOURCE, &[&name.now, &name.recipe])
            .await?;
        let Some(row) = rows.first() else {
            let renamed = transaction
                .query(
                    "SELECT name FROM oncehook.source WHERE first_name = $1 OR $1 = ANY (former_names)",
                    &[&name.now],
                )
                .await?;
            return Err(renamed_away("source", name.now, &renamed));
        };
        let stored: &str = row.get(2);
        if stored != name.recipe {
            return Err(StoreError::Refused(format!(
                "source {:?}: its event ids are now built as {:?}, but the stored keys were built as {stored:?}; the same \
                 event would be taken for a new one. Restore the old settings, or register the sender under a new source name",
                name.now, name.recipe
            )));
        }
        registered.push(Registered {
            id: row.get(0),
            first_name: row.get(1),
        });
    }
    Ok(registered)
}

async fn register_handlers(
    transaction: &Transaction<'_>,
    names: &[Name<'_>],
) -> Result<Vec<Registered>, StoreError> {
    let mut registered = Vec::with_capacity(names.len());
    for name in names {
        if let Some(was) = name.was {
            transaction
                .execute(HANDLER_RENAME, &[&was, &name.now])
                .await?;
        }
        let rows = transaction.query(HANDLER, &[&name.now]).await?;
        let Some(row) = rows.first() else {
            let renamed = transaction
                .query(
                    "SELECT name FROM oncehook.handler WHERE first_name = $1 OR $1 = ANY (former_names)",
                    &[&name.now],
                )
                .await?;
            return Err(renamed_away("handler", name.now, &renamed));
        };
        if row.get(2) {
            return Err(StoreError::Refused(format!(
                "handler {:?} was retired; give the new one another name",
                name.now
            )));
        }
        let id: i32 = row.get(0);
        // 0 rows: it says so already.
        transaction
            .execute(HANDLER_SETTINGS, &[&id, &name.recipe, &name.on_unknown])
            .await?;
        registered.push(Registered {
            id,
            first_name: row.get(1),
        });
    }
    Ok(registered)
}

/// A configuration of before a rename, perhaps on a node that was restarted or rolled back: taken
/// as a new name, what is known would be taken for new and handled twice.
fn renamed_away(kind: &str, name: &str, rows: &[Row]) -> StoreError {
    let now: &str = rows.first().map_or("", |row| row.get(0));
    StoreError::Refused(format!(
        "{kind} {name:?} was renamed to {now:?}; write name = {now:?}, was = {name:?}, or, to take the rename back, \
         name = {name:?}, was = {now:?}. A new {kind} needs another name"
    ))
}
