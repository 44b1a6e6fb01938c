//! The database of a `sql` handler that has its own, and the ledger there of what was applied.
//!
//! Ledger row and effect are one transaction under a unique key, so a second transaction for a key either finds the
//! first one's answer or waits until that has ended. Nobody need know how the first one ended to begin another.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::connection::{Connection, Lent, Pool};
use super::registry::{self, SqlFunction};
use super::transaction::{AS_CONFIGURED, Limits, Params, Transaction, expect_rows};
use super::{Settings, StoreError, migrate, tls};

/// What a handler's database needs: for a role that may make it, by [`install`] or by hand.
pub const INSTALL: &str = include_str!("ledger_install.sql");
const PRESENT: &str = include_str!("sql/ledger_present.sql");
const CLAIM: &str = include_str!("sql/ledger_claim.sql");
const ANSWER: &str = include_str!("sql/ledger_answer.sql");

/// What the URL is called in errors.
const KEY: &str = "handler.database";

/// Of an answer only the members that mean something leave the server, as in `delivery_run_sql`. Its type goes with
/// it: a function that was replaced may return another one than was looked up, and an answer that is not read is none.
const READ_ANSWER: &str = "\
    SELECT CASE WHEN jsonb_typeof(answer) = 'object' THEN
             (SELECT jsonb_object_agg(key, CASE WHEN jsonb_typeof(value) IN ('object', 'array') THEN '[]' ELSE value END)
                FROM jsonb_each(answer) WHERE key IN ('result', 'reason', 'resource', 'after_s'))
           END, returns";
const EVENT: &str = "ROW($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)::oncehook.delivered";

/// How a handler's URL connects. Nothing is expected of a session, so a pooler may lend another one for each
/// transaction.
///
/// # Errors
///
/// [`StoreError::Url`]; the text never holds the URL, which may hold a password.
pub(crate) fn settings(url: &str) -> Result<Settings, StoreError> {
    Settings::parse_key(KEY, url)?.pooled_by_transaction(None)
}

/// Makes the ledger in the database of a `sql` handler, and what its function is called with, unless all of it is
/// there. `true`: something was made. Any number of nodes may call it at once.
///
/// # Errors
///
/// [`StoreError::Refused`] where the role may not; the text has the statements for one that may.
pub async fn install(settings: &Settings) -> Result<bool, StoreError> {
    let connection = migrate::connection(settings).await?;
    let limits = Limits {
        statement: Duration::from_secs(30),
        lock: Duration::from_secs(10),
        ..Limits::SHORT
    };
    let transaction = Transaction::begin(&connection, limits).await?;
    let done = async {
        transaction
            .query(
                "SELECT pg_advisory_xact_lock(hashtext('oncehook.ledger'))",
                &[],
            )
            .await?;
        let before = Presence::of(&transaction.query(PRESENT, &[]).await?);
        if !before.present {
            let made = connection.client().batch_execute(INSTALL).await;
            made.map_err(|error| match error.code() {
                Some(&SqlState::INSUFFICIENT_PRIVILEGE) => before.refusal(settings),
                _ => StoreError::from(error),
            })?;
        }
        Presence::of(&transaction.query(PRESENT, &[]).await?).check(settings)?;
        Ok(!before.present)
    }
    .await;
    transaction.end(done).await
}

/// Whether [`install`] has nothing to do.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn is_installed(settings: &Settings) -> Result<bool, StoreError> {
    let connection = migrate::connection(settings).await?;
    let rows = connection.query_alone(PRESENT, &[]).await?;
    Ok(Presence::of(&rows).present)
}

/// What of the ledger is there.
#[derive(Debug)]
struct Presence {
    present: bool,
    usable: bool,
    role: String,
}

impl Presence {
    fn of(rows: &[Row]) -> Self {
        rows.first().map_or_else(
            || Self {
                present: false,
                usable: false,
                role: String::new(),
            },
            |row| Self {
                present: row.get("present"),
                usable: row.get("usable"),
                role: row.get("role"),
            },
        )
    }

    fn check(&self, settings: &Settings) -> Result<(), StoreError> {
        if self.present && self.usable {
            Ok(())
        } else {
            Err(self.refusal(settings))
        }
    }

    /// With the statements that mend it.
    fn refusal(&self, settings: &Settings) -> StoreError {
        let (database, role) = (settings.database(), &self.role);
        let grants = format!(
            "GRANT USAGE ON SCHEMA oncehook TO {role};\nGRANT SELECT, INSERT, UPDATE ON oncehook.applied TO {role};"
        );
        // The first line reads alone.
        StoreError::Refused(if self.present {
            format!(
                "database {database} of a handler: role {role} may not use its ledger\na role that may grant it must run \
                 there:\n\n{grants}"
            )
        } else {
            format!(
                "database {database} of a handler has no ledger: run `oncehook migrate`\nwhere role {role} may not make it, \
                 a role that may must run there:\n\n{INSTALL}\n{grants}"
            )
        })
    }
}

/// The database of a handler that has its own. Connects lazily.
#[derive(Debug)]
pub(crate) struct OtherDatabase {
    handler: String,
    call: String,
    settings: Settings,
    pool: Pool,
    /// Looked up when the database was first reached.
    function: OnceCell<SqlFunction>,
}

impl OtherDatabase {
    /// `connections` is the most that are open at once.
    pub(crate) fn new(
        settings: &Settings,
        handler: &str,
        call: &str,
        connections: usize,
    ) -> Result<Self, StoreError> {
        let runtime =
            Handle::try_current().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let tls = tls::connector(settings)?;
        Ok(Self {
            handler: handler.to_owned(),
            call: call.to_owned(),
            settings: settings.clone(),
            pool: Pool::new(settings, &tls, &runtime, None, connections)?,
            function: OnceCell::new(),
        })
    }

    pub(crate) async fn connection(&self) -> Result<Lent, StoreError> {
        self.pool.get().await
    }

    /// The function, once ledger and function were found there. Nothing is made here: a ledger that was dropped
    /// would be empty, and forget what was applied.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with what is missing; or the database cannot be asked.
    pub(crate) async fn ready(&self) -> Result<&SqlFunction, StoreError> {
        let look = || async {
            let connection = self.connection().await?;
            let rows = connection.query_alone(PRESENT, &[]).await?;
            Presence::of(&rows).check(&self.settings)?;
            registry::function(&connection, &self.handler, &self.call).await
        };
        self.function.get_or_try_init(look).await
    }
}

/// An event as a function in another database gets it.
#[derive(Debug)]
pub(crate) struct SqlEvent<'e> {
    pub(crate) id: Uuid,
    pub(crate) source: &'e str,
    pub(crate) key: &'e str,
    pub(crate) event_type: Option<&'e str>,
    pub(crate) entity: Option<&'e str>,
    pub(crate) occurred_at: Option<Timestamp>,
    pub(crate) received_at: Timestamp,
    pub(crate) body: &'e [u8],
    pub(crate) effect_key: &'e str,
    pub(crate) run: i32,
    pub(crate) attempt: i32,
}

/// What the ledger says of an effect key.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// Not applied: the function is to be run in this transaction.
    Begun,
    /// It was, with this answer.
    Applied(Option<Value>),
}

/// What the function gave.
#[derive(Debug)]
pub(crate) enum Returned {
    /// Its answer; none of one that returns nothing.
    Answer(Option<Value>),
    /// A value of a type that is no answer.
    OfType(String),
}

/// Begins a transaction in the handler's database with the effect key's row of the ledger.
pub(crate) async fn begin<'c>(
    connection: &'c Connection,
    limits: Limits,
    handler: &str,
    event: &SqlEvent<'_>,
) -> Result<(Transaction<'c>, Claimed), StoreError> {
    // Not sent together: behind a BEGIN that failed the row would be committed by itself, as the mark of an
    // effect that nobody had. Nor prepared before it: that waits for locks, too, and without a time-out.
    let transaction = Transaction::begin(connection, limits).await?.for_handlers();
    let params: Params<'_> = &[&event.effect_key, &handler, &event.run];
    let claimed = transaction.query(CLAIM, params).await.and_then(|rows| {
        expect_rows("ledger_claim", rows.len() as u64, 1)?;
        let known = rows.first().filter(|row| !row.get::<_, bool>("begun"));
        Ok(known.map_or(Claimed::Begun, |row| Claimed::Applied(row.get("answer"))))
    });
    match claimed {
        Ok(claimed) => Ok((transaction, claimed)),
        Err(error) => {
            transaction.rollback(&error).await;
            Err(error)
        }
    }
}

/// Runs the function; what its deferred constraints find is its own too.
pub(crate) async fn run(
    transaction: &Transaction<'_>,
    function: &SqlFunction,
    event: &SqlEvent<'_>,
) -> Result<Returned, StoreError> {
    let client = transaction.connection().client();
    let text = format!(
        "{READ_ANSWER} FROM (SELECT to_jsonb(value) AS answer, pg_typeof(value)::text AS returns \
                               FROM {}({EVENT}) AS called(value)) AS given",
        function.call
    );
    let moment = |at: Timestamp| SystemTime::try_from(at).ok();
    let occurred_at = event.occurred_at.and_then(moment);
    let received_at = moment(event.received_at);
    let params: [(&(dyn ToSql + Sync), Type); 11] = [
        (&event.id, Type::UUID),
        (&event.source, Type::TEXT),
        (&event.key, Type::TEXT),
        (&event.event_type, Type::TEXT),
        (&event.entity, Type::TEXT),
        (&occurred_at, Type::TIMESTAMPTZ),
        (&received_at, Type::TIMESTAMPTZ),
        (&event.body, Type::BYTEA),
        (&event.effect_key, Type::TEXT),
        (&event.run, Type::INT4),
        (&event.attempt, Type::INT4),
    ];
    // One round trip.
    let (planned, rows, checked) = tokio::join!(
        biased;
        client.batch_execute(AS_CONFIGURED),
        client.query_typed(&text, &params),
        transaction.check_constraints(),
    );
    // The first error is the cause, the others follow from it.
    planned?;
    let rows = rows?;
    checked?;
    Ok(match rows.first() {
        Some(row) => match row.get(1) {
            "jsonb" | "void" => Returned::Answer(row.get(0)),
            other => Returned::OfType(other.to_owned()),
        },
        None => Returned::Answer(None),
    })
}

/// Keeps the answer beside the effect; COMMIT comes next.
pub(crate) async fn keep(
    transaction: &Transaction<'_>,
    event: &SqlEvent<'_>,
    answer: Option<&Value>,
) -> Result<(), StoreError> {
    let params: Params<'_> = &[&event.effect_key, &answer];
    // The outcome outlasts a crash, so must what it tells of.
    let (planned, durable, kept) = tokio::join!(
        biased;
        transaction.plan_by_index(),
        transaction.durable(),
        transaction.execute(ANSWER, params),
    );
    planned?;
    durable?;
    expect_rows("ledger_answer", kept?, 1)
}
