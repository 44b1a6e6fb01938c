//! Pauses: of a handler, and of a source's events.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;
use uuid::Uuid;

use super::connection::Connection;
use super::delivery::Lease;
use super::query::time_opt;
use super::transaction::{Limits, Params, Transaction};
use super::{Store, StoreError, audit, cap};

const SWITCHES: &str = include_str!("sql/flow_switches.sql");
const HANDLER_PAUSE: &str = include_str!("sql/handler_pause.sql");
const HANDLER_RESUME: &str = include_str!("sql/handler_resume.sql");
const SOURCE_PAUSE: &str = include_str!("sql/source_pause.sql");
const SOURCE_RESUME: &str = include_str!("sql/source_resume.sql");
const HANDLERS: &str = include_str!("sql/handler_list.sql");
const SOURCES: &str = include_str!("sql/source_list.sql");
const ASIDE: &str = include_str!("sql/delivery_aside.sql");
const ASIDE_FRONT: &str = include_str!("sql/delivery_aside_front.sql");
const ASIDE_SUSPECTS: &str = include_str!("sql/delivery_aside_suspects.sql");
const ASIDE_END: &str = include_str!("sql/delivery_aside_end.sql");

/// Rows per statement that sets aside or returns: some tens of milliseconds.
pub(crate) const STEP: i64 = 2_000;

/// What can be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pausable {
    /// A handler: none of its deliveries begins.
    Handler,
    /// A source: its events are stored, and none is handled.
    Source,
}

impl Pausable {
    /// The word for people, and the first part of the audit's actions.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::Source => "source",
        }
    }
}

/// A pause as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// Since when, by the database's clock.
    pub since: Timestamp,
    /// Who.
    pub by: String,
    /// Why, if it was said.
    pub reason: Option<String>,
}

/// A handler as it stands.
#[derive(Debug, Clone, Serialize)]
pub struct HandlerInfo {
    /// Registry id.
    #[serde(skip)]
    pub id: i32,
    /// Its name.
    pub name: String,
    /// Its pause.
    pub paused: Option<Pause>,
    /// Deliveries that could begin now; counted up to 10,000 per priority.
    pub due: i64,
    /// Deliveries that are under way; counted up to 10,000.
    pub leased: i64,
    /// Deliveries whose call has an unknown result; counted up to 10,000.
    pub uncertain: i64,
    /// Deliveries that wait for a person, and their lanes with them; counted up to 10,000.
    pub held: i64,
}

/// A source as it stands.
#[derive(Debug, Clone, Serialize)]
pub struct SourceInfo {
    /// Registry id.
    #[serde(skip)]
    pub id: i32,
    /// Its name.
    pub name: String,
    /// Its pause.
    pub paused: Option<Pause>,
    /// Deliveries set aside because it is paused; counted up to 10,000.
    pub aside: i64,
}

/// What is paused, by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Switches {
    pub(crate) handlers: Vec<i32>,
    pub(crate) sources: Vec<i32>,
    /// Whether something is set aside for a source that is not paused.
    pub(crate) left_aside: bool,
}

impl Store {
    /// Pauses a handler or a source on every node, within a poll. What is claimed already ends
    /// normally. Audited.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown name, [`StoreError::Refused`] when it is paused
    /// already.
    pub async fn pause(
        &self,
        what: Pausable,
        name: &str,
        reason: Option<&str>,
        actor: &str,
    ) -> Result<(), StoreError> {
        self.switch(what, name, true, reason, actor).await
    }

    /// Ends a pause on every node, within a poll; what is set aside is ready again within another.
    /// Audited.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] for an unknown name, [`StoreError::Refused`] when it is not paused.
    pub async fn resume(
        &self,
        what: Pausable,
        name: &str,
        reason: Option<&str>,
        actor: &str,
    ) -> Result<(), StoreError> {
        self.switch(what, name, false, reason, actor).await
    }

    async fn switch(
        &self,
        what: Pausable,
        name: &str,
        pause: bool,
        reason: Option<&str>,
        actor: &str,
    ) -> Result<(), StoreError> {
        let word = what.as_str();
        if name.contains('\0') {
            return Err(StoreError::NotFound(format!("there is no {word} {name:?}")));
        }
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let done = async {
            let changed = match (what, pause) {
                (Pausable::Handler, true) => {
                    transaction
                        .execute(HANDLER_PAUSE, &[&name, &actor, &reason])
                        .await?
                }
                (Pausable::Source, true) => {
                    transaction
                        .execute(SOURCE_PAUSE, &[&name, &actor, &reason])
                        .await?
                }
                (Pausable::Handler, false) => transaction.execute(HANDLER_RESUME, &[&name]).await?,
                (Pausable::Source, false) => transaction.execute(SOURCE_RESUME, &[&name]).await?,
            };
            if changed == 0 {
                return Err(unchanged(&transaction, what, name, pause).await?);
            }
            let action = format!("{word}.{}", if pause { "pause" } else { "resume" });
            let after = serde_json::json!({ "paused": pause });
            audit::record(&transaction, actor, &action, name, reason, None, &after).await?;
            // Other nodes hear it with the commit; those that do not listen look at their next poll.
            transaction
                .query("SELECT pg_notify('oncehook_flow', '')", &[])
                .await?;
            Ok(())
        }
        .await;
        transaction.end(done).await
    }

    /// What is paused.
    pub(crate) async fn switches(&self) -> Result<Switches, StoreError> {
        let connection = self.admin().await?;
        let rows = connection.query_by_index(SWITCHES, &[]).await?;
        Ok(rows.first().map_or_else(Switches::default, |row| Switches {
            handlers: row.get("handlers"),
            sources: row.get("sources"),
            left_aside: row.get("left_aside"),
        }))
    }

    /// Every handler that is not retired, by name.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn handlers(&self) -> Result<Vec<HandlerInfo>, StoreError> {
        let connection = self.queries().await?;
        let rows = connection.query_by_index(HANDLERS, &[]).await?;
        let handler = |row: &Row| HandlerInfo {
            id: row.get("id"),
            name: row.get("name"),
            paused: paused(row, ""),
            due: row.get("due"),
            leased: row.get("leased"),
            uncertain: row.get("uncertain"),
            held: row.get("held"),
        };
        Ok(rows.iter().map(handler).collect())
    }

    /// Every source, by name.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn sources(&self) -> Result<Vec<SourceInfo>, StoreError> {
        let connection = self.queries().await?;
        let rows = connection.query_by_index(SOURCES, &[]).await?;
        let source = |row: &Row| SourceInfo {
            id: row.get("id"),
            name: row.get("name"),
            paused: paused(row, ""),
            aside: row.get("aside"),
        };
        Ok(rows.iter().map(source).collect())
    }

    /// Sets aside what a paused source has among a handler's next deliveries; how many.
    pub(crate) async fn set_front_aside(
        &self,
        handler_id: i32,
        source_id: i32,
    ) -> Result<u64, StoreError> {
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let changed = transaction
            .execute(ASIDE_FRONT, &[&handler_id, &source_id, &STEP])
            .await;
        transaction.end(changed).await
    }

    /// Returns some of what is set aside for sources that are not paused; how many.
    pub(crate) async fn end_aside(&self) -> Result<u64, StoreError> {
        let connection = self.admin().await?;
        let transaction = Transaction::begin(&connection, Limits::SHORT).await?;
        let changed = transaction.execute(ASIDE_END, &[&STEP]).await;
        transaction.end(changed).await
    }
}

/// Sets leases aside whose sources are paused. Those lost meanwhile are left alone.
pub(crate) async fn set_aside(
    connection: &Connection,
    leases: &[Lease],
) -> Result<u64, StoreError> {
    let events: Vec<Uuid> = leases.iter().map(|l| l.event_id).collect();
    let handlers: Vec<i32> = leases.iter().map(|l| l.handler_id).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|l| l.token).collect();
    let sources: Vec<Option<i32>> = leases
        .iter()
        .map(|l| l.event.as_ref().map(|event| event.source_id))
        .collect();
    let params: Params<'_> = &[&events, &handlers, &tokens, &sources];
    cap::put_back(connection, leases, ASIDE, params).await
}

/// Sets suspects aside whose sources are paused.
pub(crate) async fn set_suspects_aside(
    connection: &Connection,
    handlers: &[i32],
) -> Result<u64, StoreError> {
    connection
        .execute_alone(ASIDE_SUSPECTS, &[&handlers, &STEP])
        .await
}

/// The pause in a row whose columns begin with this.
pub(super) fn paused(row: &Row, prefix: &str) -> Option<Pause> {
    let column = |name: &str| format!("{prefix}{name}");
    Some(Pause {
        since: time_opt(row, &column("paused_at"))?,
        by: row
            .get::<_, Option<String>>(column("paused_by").as_str())
            .unwrap_or_default(),
        reason: row.get(column("paused_reason").as_str()),
    })
}

/// Why nothing was changed.
async fn unchanged(
    transaction: &Transaction<'_>,
    what: Pausable,
    name: &str,
    pause: bool,
) -> Result<StoreError, StoreError> {
    let word = what.as_str();
    let rows = match what {
        Pausable::Handler => transaction
            .query(
                "SELECT paused_by, retired_at IS NOT NULL FROM oncehook.handler WHERE name = $1",
                &[&name],
            )
            .await?,
        Pausable::Source => {
            transaction
                .query(
                    "SELECT paused_by, false FROM oncehook.source WHERE name = $1",
                    &[&name],
                )
                .await?
        }
    };
    let Some(row) = rows.first() else {
        return Ok(StoreError::NotFound(format!("there is no {word} {name:?}")));
    };
    let by: Option<String> = row.get(0);
    Ok(StoreError::Refused(match (by, pause) {
        (Some(by), true) => format!("{word} {name:?} is paused already, by {by}"),
        (_, true) if row.get(1) => format!("{word} {name:?} is retired: nothing of it runs"),
        _ => format!("{word} {name:?} is not paused"),
    }))
}
