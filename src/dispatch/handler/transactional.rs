//! Handlers inside the engine's transaction: effect, outcome and delete commit together.

use std::time::Duration;

use crate::domain::Verdict;
use crate::domain::operation::Told;
use crate::store::StoreError;
use crate::store::delivery::Lease;
use crate::store::transaction::Transaction;

use super::super::{ActiveHandler, Context};
use super::{HandlerKind, function, late, sql};

/// Handler time after which a batch takes on no more.
pub(super) const BUDGET: Duration = Duration::from_millis(20);

/// What became of one delivery of a batch.
#[derive(Debug)]
pub(crate) enum Ran {
    /// The handler's answer, and what it tells the client of an operation.
    Verdict(Verdict, Told),
    /// It failed on a constraint among others: to be confirmed alone.
    Confirm,
    /// Not begun.
    NotRun,
}

impl Ran {
    /// A verdict that comes from elsewhere than the handler.
    pub(super) fn of(verdict: Verdict) -> Self {
        Self::Verdict(verdict, Told::default())
    }

    pub(super) fn response_bytes(&self) -> usize {
        match self {
            Self::Verdict(_, told) => told.response.as_ref().map_or(0, |given| given.body.len()),
            Self::Confirm | Self::NotRun => 0,
        }
    }
}

/// Why the whole batch is rolled back.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The database.
    Store(StoreError),
    /// The handler (of the lease at this index) ended the transaction itself.
    EndedTransaction(usize),
    /// A function did not return within the handler's time-out.
    TimedOut,
}

impl From<StoreError> for RunError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Runs the handler over locked leases, each in a savepoint or block of its own.
pub(crate) async fn run(
    context: &Context,
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    leases: &[&Lease],
    xact: Option<&str>,
) -> Result<Vec<Ran>, RunError> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    match (&handler.spec.kind, &handler.sql) {
        (HandlerKind::Sql { .. }, Some(found)) => {
            sql::run(context, transaction, handler, found, leases).await
        }
        (HandlerKind::Settle(settle), _) => {
            late::run(context, transaction, handler, settle, leases).await
        }
        (HandlerKind::Function(code), _) => {
            function::run(
                context,
                transaction,
                handler,
                code.as_ref(),
                leases,
                xact.unwrap_or_default(),
            )
            .await
        }
        _ => Ok(leases.iter().map(|_| Ran::NotRun).collect()),
    }
}
