//! The first half of every settle transaction: begin, lock the rows, see what is finished already.

use std::collections::HashSet;

use tokio_postgres::Row;
use uuid::Uuid;

use super::StoreError;
use super::connection::Connection;
use super::delivery::Lease;
use super::transaction::{AS_CONFIGURED, Limits, Params, Transaction};

const LOCK: &str = include_str!("sql/delivery_lock.sql");
const OUTCOME_PRESENT: &str = include_str!("sql/outcome_present.sql");

/// Whose statements follow the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plans {
    /// The engine's own.
    Ours,
    /// A handler's.
    Handlers,
}

/// What a settle batch holds after its rows were locked.
#[derive(Debug)]
pub(crate) struct Locked {
    /// Indexes of the leases that are still ours and have no outcome.
    pub(crate) ours: Vec<usize>,
    /// Indexes of leases whose run has an outcome already: only the delete is left.
    pub(crate) finished: Vec<usize>,
    /// The transaction's id; a handler that ends the transaction changes it.
    pub(crate) xact: Option<String>,
}

/// Begins a settle transaction, locks the rows of the leases in key order, then reads which have
/// an outcome already. What follows runs under the operator's planner settings if it is a
/// handler's.
pub(crate) async fn begin<'c>(
    connection: &'c Connection,
    limits: Limits,
    leases: &[Lease],
    plans: Plans,
) -> Result<(Transaction<'c>, Locked), StoreError> {
    // Prepared before BEGIN, so that everything travels together.
    let lock = connection.prepared(LOCK).await?;
    let outcome_present = connection.prepared(OUTCOME_PRESENT).await?;
    let events: Vec<Uuid> = leases.iter().map(|l| l.event_id).collect();
    let handlers: Vec<i32> = leases.iter().map(|l| l.handler_id).collect();
    let runs: Vec<i16> = leases.iter().map(|l| l.run).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|l| l.token).collect();
    let lock_params: Params<'_> = &[&events, &handlers, &tokens];
    let present_params: Params<'_> = &[&events, &handlers, &runs];
    let client = connection.client();
    // One round trip. Each statement has a snapshot of its own, so the second sees what whoever
    // held the rows before has committed. Behind an error the rest fails too.
    let (transaction, rows, done, planned) = tokio::join!(
        biased;
        Transaction::begin(connection, limits),
        lock.query(client, lock_params),
        outcome_present.query(client, present_params),
        async {
            match plans {
                Plans::Ours => Ok(()),
                Plans::Handlers => client.batch_execute(AS_CONFIGURED).await,
            }
        },
    );
    let transaction = match plans {
        Plans::Ours => transaction?,
        Plans::Handlers => transaction?.for_handlers(),
    };
    // The first error is the cause, the others follow from it.
    let read = rows.and_then(|rows| {
        let done = done?;
        planned?;
        Ok((rows, done))
    });
    match read {
        Ok((rows, done)) => Ok((transaction, locked(leases, &rows, &done))),
        Err(error) => {
            transaction.rollback(&error).await;
            Err(error)
        }
    }
}

fn locked(leases: &[Lease], rows: &[Row], done: &[Row]) -> Locked {
    let ids = |rows: &[Row]| -> HashSet<(Uuid, i32)> {
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    let held = ids(rows);
    let done = ids(done);
    let mut locked = Locked {
        ours: Vec::new(),
        finished: Vec::new(),
        xact: rows.first().map(|r| r.get(2)),
    };
    for (index, lease) in leases.iter().enumerate() {
        let id = (lease.event_id, lease.handler_id);
        match (held.contains(&id), done.contains(&id)) {
            (true, true) => locked.finished.push(index),
            (true, false) => locked.ours.push(index),
            (false, _) => {}
        }
    }
    locked
}

/// Whether the lease's run has an outcome already. Its row must be locked.
pub(crate) async fn has_outcome(
    transaction: &Transaction<'_>,
    lease: &Lease,
) -> Result<bool, StoreError> {
    let (events, handlers, runs) = ([lease.event_id], [lease.handler_id], [lease.run]);
    let rows = transaction
        .query(
            OUTCOME_PRESENT,
            &[&events.as_slice(), &handlers.as_slice(), &runs.as_slice()],
        )
        .await?;
    Ok(!rows.is_empty())
}

/// The current transaction's id.
pub(crate) async fn current_xact(transaction: &Transaction<'_>) -> Result<String, StoreError> {
    let rows = transaction
        .query("SELECT pg_current_xact_id()::text", &[])
        .await?;
    Ok(rows.first().map(|r| r.get(0)).unwrap_or_default())
}
