//! Operations as they are stored: registration, and what is read of them.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::operation::{Ended, Listed, Record, Response, State, Stored};
use crate::domain::{DecidedBy, Ending, EventKey};
use crate::provider::operation::DigestRule;

use super::registry::Registered;
use super::transaction::{Limits, Transaction};
use super::{Store, StoreError};

const READ: &str = include_str!("sql/operation_read.sql");
const LIST: &str = include_str!("sql/operation_list.sql");
const ENDED: &str = include_str!("sql/operation_ended.sql");
const REGISTER: &str = include_str!("sql/operation_register.sql");
const RULE: &str = include_str!("sql/digest_rule_register.sql");
const RULES: &str = include_str!("sql/digest_rule_list.sql");

/// What of an operation's configuration is stored.
#[derive(Debug)]
pub(crate) struct NewOperation {
    /// Indexes of its source and its handler among the names that are registered with it.
    pub(crate) source: usize,
    pub(crate) handler: usize,
    /// JSON Pointers, sorted, each once.
    pub(crate) volatile: Vec<String>,
    pub(crate) keep_response: Option<Duration>,
}

/// The digest rules of a registered operation.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) all: Vec<DigestRule>,
    /// The number of the configured one.
    pub(crate) current: i16,
}

/// Which operations are listed; all given ones must hold.
#[derive(Debug, Clone, Default)]
pub struct OperationFilter {
    /// Its name.
    pub operation: Option<String>,
    /// Where it stands.
    pub state: Option<State>,
    /// Created before then.
    pub created_before: Option<Timestamp>,
    /// Keyset position: older than this id.
    pub before: Option<Uuid>,
    /// Page size, 1 to 500.
    pub limit: u16,
}

/// Registers operations, in the transaction that has registered their names.
pub(super) async fn register(
    transaction: &Transaction<'_>,
    operations: &[NewOperation],
    (sources, handlers): (&[Registered], &[Registered]),
) -> Result<Vec<Rules>, StoreError> {
    let mut registered = Vec::with_capacity(operations.len());
    for operation in operations {
        let (Some(source), Some(handler)) = (
            sources.get(operation.source),
            handlers.get(operation.handler),
        ) else {
            return Err(StoreError::Refused("an operation without its names".into()));
        };
        let keep = operation.keep_response.map(|time| time.as_secs_f64());
        transaction
            .execute(REGISTER, &[&handler.id, &source.id, &keep])
            .await?;
        transaction
            .execute(RULE, &[&source.id, &operation.volatile])
            .await?;
        let all = rules(transaction, source.id).await?;
        let current = all.iter().find(|rule| rule.volatile == operation.volatile);
        let current = current
            .map(|rule| rule.number)
            .ok_or_else(|| StoreError::Refused("a digest rule was not registered".into()))?;
        registered.push(Rules { all, current });
    }
    Ok(registered)
}

/// Every digest rule that an operation ever had.
pub(crate) async fn rules(
    transaction: &Transaction<'_>,
    source_id: i32,
) -> Result<Vec<DigestRule>, StoreError> {
    let rows = transaction.query(RULES, &[&source_id]).await?;
    let rule = |row: &Row| DigestRule {
        number: row.get(0),
        volatile: row.get(1),
    };
    Ok(rows.iter().map(rule).collect())
}

impl Store {
    /// Operations by source and key, in the order asked for; `None` where the key names nothing. One
    /// statement, on connections that nobody else uses.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn operations(
        &self,
        keys: &[(i32, &EventKey)],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let sources: Vec<i32> = keys.iter().map(|(source, _)| *source).collect();
        let texts: Vec<&str> = keys.iter().map(|(_, key)| key.as_str()).collect();
        let connection = self.waiting().await?;
        let none: [Uuid; 0] = [];
        let rows = connection
            .query_by_index(READ, &[&sources, &texts, &none.as_slice(), &true])
            .await?;
        let mut found = vec![None; keys.len()];
        for row in &rows {
            let no: i32 = row.get("no");
            let slot = usize::try_from(no).ok().and_then(|no| no.checked_sub(1));
            if let Some(slot) = slot.and_then(|no| found.get_mut(no)) {
                *slot = Some(record(row)?);
            }
        }
        Ok(found)
    }

    /// Which of these operations are not at work any more; their records tell how they ended. Reads no
    /// answer, so that any number may be asked for at once.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn operations_ended(&self, ids: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        let connection = self.waiting().await?;
        let rows = connection.query_by_index(ENDED, &[&ids]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// One operation by its id, and which it is; also one whose key names a later intent.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn operation_by_id(&self, id: Uuid) -> Result<Option<Listed>, StoreError> {
        let connection = self.queries().await?;
        let (sources, keys): ([i32; 0], [&str; 0]) = ([], []);
        let ids = [id];
        let rows = connection
            .query_by_index(
                READ,
                &[
                    &sources.as_slice(),
                    &keys.as_slice(),
                    &ids.as_slice(),
                    &true,
                ],
            )
            .await?;
        rows.first().map(listed).transpose()
    }

    /// A page of operations, newest first, without the bytes of their answers.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn list_operations(
        &self,
        filter: &OperationFilter,
    ) -> Result<Vec<Listed>, StoreError> {
        let until = filter.created_before.map(SystemTime::try_from).transpose();
        let until = until.map_err(|_| {
            StoreError::Refused("that time lies outside what PostgreSQL can hold".into())
        })?;
        let state = filter.state.map(State::as_str);
        let limit = i64::from(filter.limit.clamp(1, super::query::PAGE_MAX));
        let connection = self.queries().await?;
        let snapshot = Transaction::snapshot(&connection, Limits::ALONE).await?;
        let read = async {
            let page = snapshot
                .query(
                    LIST,
                    &[&filter.operation, &state, &until, &filter.before, &limit],
                )
                .await?;
            let ids: Vec<Uuid> = page.iter().map(|row| row.get(0)).collect();
            let (sources, keys): ([i32; 0], [&str; 0]) = ([], []);
            let rows = snapshot
                .query(READ, &[&sources.as_slice(), &keys.as_slice(), &ids, &false])
                .await?;
            let mut read = rows.iter().map(listed).collect::<Result<Vec<_>, _>>()?;
            read.sort_by_key(|one| std::cmp::Reverse(one.record.id));
            Ok(read)
        }
        .await;
        snapshot.end(read).await
    }
}

fn listed(row: &Row) -> Result<Listed, StoreError> {
    Ok(Listed {
        operation: row.get("operation"),
        key: EventKey::stored(row.get::<_, &str>("key"))
            .map_err(|error| StoreError::NotFound(error.to_string()))?,
        record: record(row)?,
    })
}

fn record(row: &Row) -> Result<Record, StoreError> {
    let time = |column: &str| {
        row.get::<_, Option<SystemTime>>(column)
            .and_then(|at| Timestamp::try_from(at).ok())
    };
    let live: Option<&str> = row.get("state");
    let ended = ended(row, time("finished_at"));
    let state = match (live, ended.as_ref().map(|ended| ended.ending)) {
        (Some("uncertain"), _) => State::Uncertain,
        (Some(_), _) => State::Processing,
        (None, Some(Ending::Succeeded | Ending::Failed | Ending::Skipped)) => State::Completed,
        (None, Some(Ending::Dead | Ending::Cancelled) | None) => State::Failed,
    };
    let tries = match live {
        Some(_) => row.get::<_, Option<i32>>("tries"),
        None => row.get("attempts"),
    };
    let created_at = time("created_at").unwrap_or(Timestamp::UNIX_EPOCH);
    Ok(Record {
        id: row.get("id"),
        run: row
            .get::<_, Option<i16>>("live_run")
            .or_else(|| row.get("run"))
            .unwrap_or(1),
        state,
        ended,
        stored: stored(row)?,
        attempts: tries.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        resource: row.get("resource"),
        external_id: row.get("external_id"),
        correlation_id: row.get("correlation_id"),
        created_at,
        updated_at: time("updated_at").map_or(created_at, |at| at.max(created_at)),
        expires_at: time("expires_at"),
        next_check_at: time("next_check_at"),
    })
}

fn ended(row: &Row, at: Option<Timestamp>) -> Option<Ended> {
    let ending = Ending::named(row.get::<_, Option<&str>>("result")?)?;
    Some(Ended {
        ending,
        decided_by: match row.get::<_, Option<&str>>("decided_by") {
            Some("probe") => DecidedBy::Probe,
            Some("operator") => DecidedBy::Operator,
            Some("webhook") => DecidedBy::Webhook,
            _ => DecidedBy::Handler,
        },
        at: at?,
        reason: row.get("reason"),
        evidence_of_effect: row.get::<_, Option<SystemTime>>("late_at").is_some(),
    })
}

fn stored(row: &Row) -> Result<Stored, StoreError> {
    if row.get("gone") {
        return Ok(Stored::Purged);
    }
    Ok(response(row)?.map_or(Stored::Nothing, Stored::Kept))
}

/// The answer in the columns `status`, `headers` and `body`, if there is one.
pub(super) fn response(row: &Row) -> Result<Option<Response>, StoreError> {
    let (Some(status), Some(body)) = (
        row.get::<_, Option<i32>>("status"),
        row.get::<_, Option<Vec<u8>>>("body"),
    ) else {
        return Ok(None);
    };
    let headers = row.get::<_, Option<serde_json::Value>>("headers");
    let headers = serde_json::from_value(headers.unwrap_or_default());
    let unreadable = || StoreError::Refused("the headers of a stored answer cannot be read".into());
    Ok(Some(Response {
        status: u16::try_from(status).map_err(|_| unreadable())?,
        headers: headers.map_err(|_| unreadable())?,
        body: body.into(),
    }))
}
