//! The invariants of the engine, checked over a live database.
//!
//! Every check is one statement that returns what contradicts it, so a system at work shows it no
//! half of a transaction. Each has a read-only transaction of its own, so that neither its snapshot,
//! which vacuum must respect, nor its table locks, which only a change of the table's definition
//! minds, outlast it. What time makes wrong (a lease that nobody reaps) is found minutes late.

mod check;
mod report;

use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::domain::Pattern;

use super::connection::Connection;
use super::transaction::{Limits, Params, Transaction};
use super::{Store, StoreError, migrate};

use check::{CHECKS, Check, MISSING, NEWER, Reads, SCHEMA, Unanswered};
pub use report::{CheckReport, CheckState, Finding, Verification};

const VERSIONS: &str = include_str!("../sql/verify_schema.sql");
const COUNTS: &str = include_str!("../sql/verify_counts.sql");
const NAMES: &str = include_str!("../sql/verify_names.sql");
const TYPES: &str = include_str!("../sql/verify_types.sql");

/// How far back history is read unless said otherwise: what a system that is checked daily has
/// not shown yet, twice over.
pub const WINDOW: Duration = Duration::from_hours(48);
/// Examples per check unless said otherwise.
pub const EXAMPLES: u16 = 5;
/// Longest time of one check unless said otherwise.
pub const CHECK_TIME: Duration = Duration::from_mins(1);
/// The longest that PostgreSQL can be told, 24 days.
pub const CHECK_TIME_MAX: Duration = Duration::from_millis(i32::MAX as u64);
/// How long a transaction may be open unless said otherwise.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// What a verification reads.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// Events received, and history written, since then. Live deliveries are checked in any case.
    pub since: Timestamp,
    /// Examples per check, at most; at least one.
    pub examples: u16,
    /// Longest time of one check, at most [`CHECK_TIME_MAX`]; one that takes longer is reported as
    /// unfinished. Zero for no limit.
    pub check_time: Duration,
    /// How long a transaction may be open and an ended lease unreaped before it is a finding; due
    /// work may wait three times as long.
    pub patience: Duration,
    /// Also hash the stored bytes of every event and compare them with its key's digest.
    pub digests: bool,
    /// Configured handlers with their patterns. What the database cannot know: which events would
    /// match a handler that was added after they came.
    pub handlers: Vec<(String, Vec<Pattern>)>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            since: Timestamp::now()
                .checked_sub(WINDOW)
                .unwrap_or(Timestamp::UNIX_EPOCH),
            examples: EXAMPLES,
            check_time: CHECK_TIME,
            patience: PATIENCE,
            digests: false,
            handlers: Vec::new(),
        }
    }
}

impl VerifyOptions {
    /// All of history, stored bytes included.
    pub fn everything() -> Self {
        Self {
            since: Timestamp::UNIX_EPOCH,
            digests: true,
            ..Self::default()
        }
    }
}

impl Store {
    /// Checks the invariants over what is stored. A system at work may go on: each check is one
    /// statement in a read-only transaction of its own that locks no row. With
    /// [`Settings::for_reading`](super::Settings::for_reading) a standby can be asked.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked. A check that takes too long, or meets a table that
    /// somebody has locked, is no error but [`CheckState::Unfinished`]; so is a schema that has not
    /// every migration, over which nothing else is checked.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f(store: oncehook::store::Store) -> Result<(), oncehook::store::StoreError> {
    /// use oncehook::store::verify::VerifyOptions;
    ///
    /// let verification = store.verify(&VerifyOptions::default()).await?;
    /// assert!(verification.holds, "{verification}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn verify(&self, options: &VerifyOptions) -> Result<Verification, StoreError> {
        let since =
            SystemTime::try_from(options.since.max(Timestamp::UNIX_EPOCH)).map_err(|_| {
                StoreError::Refused("that time lies outside what PostgreSQL can hold".into())
            })?;
        if options.check_time > CHECK_TIME_MAX {
            let text = "a check cannot be given more than 24 days; 0 is no limit";
            return Err(StoreError::Refused(text.into()));
        }
        let connection = self.queries().await?;
        let limits = Limits {
            statement: options.check_time,
            ..Limits::SHORT
        };
        let reader = Reader {
            connection: &connection,
            limits,
        };
        Box::pin(verify_with(&reader, options, since)).await
    }
}

/// Asks one thing at a time.
struct Reader<'c> {
    connection: &'c Connection,
    limits: Limits,
}

impl Reader<'_> {
    /// The answer of one statement in a transaction of its own.
    async fn query(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let snapshot = Transaction::snapshot(self.connection, self.limits).await?;
        let answer = async {
            // Whole days are read: by index, as others do, that would go row by row.
            snapshot.plan_for_many_rows().await?;
            snapshot.query(sql, params).await
        };
        let answer = answer.await;
        snapshot.end(answer).await
    }
}

async fn verify_with(
    reader: &Reader<'_>,
    options: &VerifyOptions,
    since: SystemTime,
) -> Result<Verification, StoreError> {
    let schema = schema(reader).await?;
    if schema.state == CheckState::Unfinished {
        return Ok(Verification::new(options.since, vec![schema]));
    }
    let counts = answered(reader.query(COUNTS, &[&since]).await)?;
    let counts = counts.ok().and_then(|rows| rows.into_iter().next());
    let mut raw = vec![];
    // Without an example there is no row to bear the number found.
    let examples = i64::from(options.examples.max(1));
    let patience = options.patience.as_secs_f64();
    for check in CHECKS.iter().filter(|c| options.digests || !c.costly) {
        let params: Params<'_> = match check.reads {
            Reads::Live => &[&examples],
            Reads::Late => &[&examples, &patience],
            Reads::Since => &[&examples, &since],
        };
        raw.push(run(check, reader.query(check.sql, params)).await?);
    }
    if !options.handlers.is_empty() {
        let found = missing(reader, &options.handlers, since, examples);
        raw.push(run(&MISSING, found).await?);
    }
    let names = Names::read(reader, &raw).await?;
    let mut checks = vec![schema];
    checks.extend(raw.iter().map(|ran| ran.report(&names, counts.as_ref())));
    Ok(Verification::new(options.since, checks))
}

/// Compares the applied migrations with those that this program has. While some are missing, the
/// other statements are not for this schema.
async fn schema(reader: &Reader<'_>) -> Result<CheckReport, StoreError> {
    let began = Instant::now();
    let rows = match reader.query(VERSIONS, &[]).await {
        Err(error) if error.sqlstate() == Some(&SqlState::UNDEFINED_TABLE) => Vec::new(),
        rows => match answered(rows)? {
            Ok(rows) => rows,
            Err(unanswered) => return Ok(SCHEMA.report().unanswered(unanswered)),
        },
    };
    let applied: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let known = migrate::versions();
    let pending = known.iter().filter(|v| !applied.contains(v));
    let newer = applied.iter().filter(|v| !known.contains(v));
    let texts: Vec<String> = pending
        .clone()
        .map(|v| format!("migration {v} is not applied, so nothing else was checked"))
        .chain(newer.map(|v| format!("migration {v} is of a newer program than this one")))
        .collect();
    let state = match (pending.count(), texts.len()) {
        (0, 0) => CheckState::Ok,
        (0, _) => CheckState::Warning,
        _ => CheckState::Unfinished,
    };
    let report = SCHEMA.report();
    Ok(CheckReport {
        state,
        next: match state {
            CheckState::Warning => NEWER,
            _ => report.next,
        },
        examined: Some(applied.len() as u64),
        found: texts.len() as u64,
        took_ms: millis(began.elapsed()),
        findings: texts.into_iter().map(Finding::of_nothing).collect(),
        ..report
    })
}

/// What a check's statement returned.
struct Ran {
    check: &'static Check,
    took: Duration,
    rows: Result<Vec<Row>, Unanswered>,
}

async fn run(
    check: &'static Check,
    found: impl Future<Output = Result<Vec<Row>, StoreError>>,
) -> Result<Ran, StoreError> {
    let began = Instant::now();
    let rows = answered(found.await)?;
    Ok(Ran {
        check,
        took: began.elapsed(),
        rows,
    })
}

/// A statement that was given up costs only its own answer: the inner error says why.
fn answered<T>(rows: Result<Vec<T>, StoreError>) -> Result<Result<Vec<T>, Unanswered>, StoreError> {
    match rows {
        Ok(rows) => Ok(Ok(rows)),
        Err(error) => match error.sqlstate().and_then(Unanswered::of) {
            Some(unanswered) => Ok(Err(unanswered)),
            None => Err(error),
        },
    }
}

/// Events that match a handler's patterns and never had a delivery for it. Which types match is
/// decided here, as for the fan-out; the database finds the events.
async fn missing(
    reader: &Reader<'_>,
    configured: &[(String, Vec<Pattern>)],
    since: SystemTime,
    examples: i64,
) -> Result<Vec<Row>, StoreError> {
    let handlers = registered(
        reader,
        "SELECT id, name FROM oncehook.handler WHERE retired_at IS NULL",
    )
    .await?;
    let sources = registered(reader, "SELECT id, name FROM oncehook.source").await?;
    let types = reader.query(TYPES, &[&since]).await?;
    let (mut to, mut of, mut with) = (Vec::new(), Vec::new(), Vec::new());
    for (name, patterns) in configured {
        let Some((handler, _)) = handlers.iter().find(|(_, registered)| registered == name) else {
            continue; // No node has started with it yet.
        };
        for row in &types {
            let (source, event_type): (i32, &str) = (row.get(0), row.get(1));
            let takes = sources
                .iter()
                .filter(|(id, _)| *id == source)
                .any(|(_, name)| patterns.iter().any(|p| p.takes(name, Some(event_type))));
            if takes {
                to.push(*handler);
                of.push(source);
                with.push(event_type);
            }
        }
    }
    reader
        .query(MISSING.sql, &[&examples, &since, &to, &of, &with])
        .await
}

async fn registered(
    reader: &Reader<'_>,
    sql: &'static str,
) -> Result<Vec<(i32, String)>, StoreError> {
    let rows = reader.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Names for the ids in findings.
struct Names {
    sources: Vec<(i32, String)>,
    handlers: Vec<(i32, String)>,
    events: Vec<(Uuid, i32, String)>,
}

impl Names {
    async fn read(reader: &Reader<'_>, raw: &[Ran]) -> Result<Self, StoreError> {
        let ids: Vec<Uuid> = raw
            .iter()
            .filter_map(|ran| ran.rows.as_ref().ok())
            .flatten()
            .filter_map(|row| row.get("event_id"))
            .collect();
        // Without its name a thing is called by its id.
        let events = answered(reader.query(NAMES, &[&ids]).await)?.unwrap_or_default();
        let sources = registered(reader, "SELECT id, name FROM oncehook.source").await;
        let handlers = registered(reader, "SELECT id, name FROM oncehook.handler").await;
        Ok(Self {
            sources: answered(sources)?.unwrap_or_default(),
            handlers: answered(handlers)?.unwrap_or_default(),
            events: events
                .iter()
                .map(|row| (row.get(0), row.get(1), row.get(2)))
                .collect(),
        })
    }

    fn of(names: &[(i32, String)], id: i32) -> String {
        let known = names.iter().find(|(known, _)| *known == id);
        known.map_or_else(|| format!("#{id}"), |(_, name)| name.clone())
    }

    fn finding(&self, row: &Row) -> Finding {
        let event_id: Option<Uuid> = row.get("event_id");
        let event = event_id.and_then(|id| self.events.iter().find(|(known, ..)| *known == id));
        let source: Option<i32> = row.get("source_id");
        let key: Option<String> = row.get("key");
        let handler: Option<i32> = row.get("handler_id");
        Finding {
            event_id,
            source: source
                .or(event.map(|(_, source, _)| *source))
                .map(|id| Self::of(&self.sources, id)),
            key: key.or(event.map(|(.., key)| key.clone())),
            handler: handler.map(|id| Self::of(&self.handlers, id)),
            run: row.get("run"),
            detail: row.get("detail"),
        }
    }
}

impl Ran {
    fn report(&self, names: &Names, counts: Option<&Row>) -> CheckReport {
        let examined = counts.filter(|_| !self.check.counted.is_empty());
        let examined = examined.map(|row| row.get::<_, i64>(self.check.counted));
        let unnamed = CheckReport {
            examined: examined.and_then(|n| u64::try_from(n).ok()),
            took_ms: millis(self.took),
            ..self.check.report()
        };
        match &self.rows {
            Ok(rows) => {
                let found: i64 = rows.first().map_or(0, |row| row.get("found"));
                CheckReport {
                    state: if found > 0 {
                        self.check.severity.into()
                    } else {
                        CheckState::Ok
                    },
                    found: u64::try_from(found).unwrap_or_default(),
                    findings: rows.iter().map(|row| names.finding(row)).collect(),
                    ..unnamed
                }
            }
            Err(unanswered) => unnamed.unanswered(*unanswered),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
