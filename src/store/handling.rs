//! What handlers get of their events, and the server-side loop of the `sql` kind.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::domain::operation::Told;

use super::StoreError;
use super::connection::Connection;
use super::delivery::Lease;
use super::operation;
use super::transaction::{Transaction, expect_rows};

const RUN_SQL: &str = include_str!("sql/delivery_run_sql.sql");
/// SQLSTATE of the loop for an event whose payload is gone. A function may raise it too; then an object is named, if
/// only by an empty text.
const PAYLOAD_GONE: &str = "OH404";
const PAYLOADS: &str = include_str!("sql/event_payloads.sql");

/// The payload handlers outside SQL get.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    pub(crate) received_at: Timestamp,
    pub(crate) body: Vec<u8>,
    /// Stored headers as JSON.
    pub(crate) headers: Vec<u8>,
}

impl Payload {
    /// The content type that the event came with.
    pub(crate) fn content_type(&self) -> Option<String> {
        let fields: Vec<(String, String)> =
            serde_json::from_slice(&self.headers).unwrap_or_default();
        fields
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("content-type"))
            .map(|(_, value)| value)
    }
}

/// The answer of one `sql` handler call.
#[derive(Debug, Clone)]
pub(crate) struct SqlAnswer {
    /// Index into the batch.
    pub(crate) index: usize,
    /// `None`: the payload is gone, and nothing was called.
    pub(crate) result: Option<Result<Option<serde_json::Value>, SqlFailure>>,
    /// What it says of the response to an operation.
    pub(crate) told: Told,
}

/// The exception of one `sql` handler call.
#[derive(Debug, Clone)]
pub(crate) struct SqlFailure {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) object: String,
    pub(crate) line: String,
}

impl SqlFailure {
    /// The exception that a statement ended with; `None` where PostgreSQL gave no answer.
    pub(crate) fn of(error: &tokio_postgres::Error) -> Option<Self> {
        let db = error.as_db_error()?;
        let object = [
            ("table", db.table()),
            ("column", db.column()),
            ("constraint", db.constraint()),
        ];
        let object = object
            .into_iter()
            .filter_map(|(kind, name)| name.map(|name| format!("{kind} {name}")));
        Some(Self {
            code: db.code().code().to_owned(),
            message: db.message().to_owned(),
            object: object.collect::<Vec<_>>().join(" "),
            line: db.where_().and_then(line).unwrap_or_default(),
        })
    }
}

/// Only where it happened; the quoted statement may hold values.
fn line(context: &str) -> Option<String> {
    const AT: &str = " line ";
    let found = context.lines().find_map(|frame| {
        let frame = frame.get(frame.find("PL/pgSQL function ")?..)?;
        let number = frame.find(AT)? + AT.len();
        let digits = frame.get(number..)?.bytes().take_while(u8::is_ascii_digit);
        frame.get(..number + digits.count())
    });
    found.map(str::to_owned)
}

/// What a `sql` handler is called with, beside the event itself.
#[derive(Debug)]
pub(crate) struct SqlCall<'a> {
    /// Qualified function name, checked at start.
    pub(crate) function: &'a str,
    /// Whether it returns jsonb.
    pub(crate) answers: bool,
    /// Handler time after which no further delivery is begun.
    pub(crate) budget: Duration,
    /// Whether it serves an operation.
    pub(crate) responds: bool,
}

/// Runs a `sql` handler over locked leases; those not returned were not run.
pub(crate) async fn run_sql(
    transaction: &Transaction<'_>,
    call: &SqlCall<'_>,
    leases: &[(&Lease, String, &str)],
) -> Result<Vec<SqlAnswer>, StoreError> {
    let events: Vec<Uuid> = leases.iter().map(|(l, _, _)| l.event_id).collect();
    let runs: Vec<i16> = leases.iter().map(|(l, _, _)| l.run).collect();
    let attempts: Vec<i32> = leases.iter().map(|(l, _, _)| l.attempt()).collect();
    let effect_keys: Vec<&str> = leases.iter().map(|(_, key, _)| key.as_str()).collect();
    let sources: Vec<&str> = leases.iter().map(|(_, _, source)| *source).collect();
    let budget = call.budget.as_secs_f64() * 1_000.0;
    let rows = transaction
        .query(
            RUN_SQL,
            &[
                &call.function,
                &call.answers,
                &events,
                &runs,
                &attempts,
                &effect_keys,
                &sources,
                &budget,
                &call.responds,
            ],
        )
        .await?;
    let mut answers = Vec::with_capacity(rows.len());
    for row in &rows {
        let no: i32 = row.get(0);
        let Some(index) = usize::try_from(no).ok().and_then(|no| no.checked_sub(1)) else {
            continue;
        };
        let text = |column: usize| row.get::<_, Option<String>>(column).unwrap_or_default();
        let object: Option<String> = row.get(4);
        let result = match row.get::<_, Option<String>>(2) {
            None => Some(Ok(row.get(1))),
            Some(code) if code == PAYLOAD_GONE && object.is_none() => None,
            Some(code) => Some(Err(SqlFailure {
                code,
                message: text(3),
                object: object.unwrap_or_default(),
                line: text(5),
            })),
        };
        let told = Told {
            response: operation::response(row)?,
            external_id: row.get("external_id"),
        };
        answers.push(SqlAnswer {
            index,
            result,
            told,
        });
    }
    Ok(answers)
}

/// Bytes of bodies that are read at once, unless the first one alone has more.
const PART: i64 = 4 << 20;

/// The payloads of the first of some events.
#[derive(Debug)]
pub(crate) struct Part {
    /// By event id; those dropped are absent.
    pub(crate) payloads: HashMap<Uuid, Payload>,
    /// How many of the events these are, at least one.
    pub(crate) read: usize,
}

/// The payloads of as many of the events as are read at once; the rest is asked for again.
pub(crate) async fn payloads(connection: &Connection, events: &[Uuid]) -> Result<Part, StoreError> {
    let rows = connection.query_alone(PAYLOADS, &[&events, &PART]).await?;
    part(&rows, events)
}

/// The same inside a transaction.
pub(crate) async fn payloads_within(
    transaction: &Transaction<'_>,
    events: &[Uuid],
) -> Result<Part, StoreError> {
    let rows = transaction.query(PAYLOADS, &[&events, &PART]).await?;
    part(&rows, events)
}

fn part(rows: &[Row], events: &[Uuid]) -> Result<Part, StoreError> {
    if rows.is_empty() && !events.is_empty() {
        expect_rows("event_payloads", 0, 1)?;
    }
    let payload = |row: &Row| {
        let payload = Payload {
            received_at: Timestamp::try_from(row.get::<_, Option<SystemTime>>(1)?)
                .unwrap_or(Timestamp::UNIX_EPOCH),
            body: row.get(2),
            headers: row.get(3),
        };
        Some((row.get(0), payload))
    };
    Ok(Part {
        payloads: rows.iter().filter_map(payload).collect(),
        read: rows.len(),
    })
}
