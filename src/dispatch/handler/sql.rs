//! The `sql` kind: a SQL function called by a server-side loop, one exception block per event.

use crate::domain::Verdict;
use crate::domain::operation::Told;
use crate::store::delivery::Lease;
use crate::store::handling::{self, SqlCall, SqlFailure};
use crate::store::registry::SqlFunction;
use crate::store::transaction::Transaction;
use crate::telemetry::clean_resource;

use super::super::{ActiveHandler, Context};
use super::transactional::{BUDGET, Ran, RunError};
use super::{answer, error_text};

/// SQLSTATE that a handler raises for "no later try can succeed".
pub(crate) const PERMANENT: &str = "OH001";

pub(super) async fn run(
    context: &Context,
    transaction: &Transaction<'_>,
    handler: &ActiveHandler,
    function: &SqlFunction,
    leases: &[&Lease],
) -> Result<Vec<Ran>, RunError> {
    let mut ran: Vec<Ran> = leases.iter().map(|_| Ran::NotRun).collect();
    let mut calls = Vec::with_capacity(leases.len());
    let mut positions = Vec::with_capacity(leases.len());
    let mut names = Vec::with_capacity(leases.len());
    for (position, lease) in leases.iter().enumerate() {
        let Some(event) = &lease.event else {
            set(&mut ran, position, Ran::of(expired()));
            continue;
        };
        match context.registry.identify(lease, event, handler) {
            Some((source, effect_key)) => {
                positions.push(position);
                names.push((*lease, effect_key.as_str().to_owned(), source));
            }
            None => set(&mut ran, position, Ran::of(Verdict::source_unknown())),
        }
    }
    for (lease, effect_key, source) in &names {
        calls.push((*lease, effect_key.clone(), source.as_str()));
    }
    let call = SqlCall {
        function: &function.call,
        answers: function.answers,
        budget: BUDGET,
        responds: handler.spec.operation.is_some(),
    };
    let among_others = calls.len() > 1;
    for done in handling::run_sql(transaction, &call, &calls).await? {
        let Some(position) = positions.get(done.index) else {
            continue;
        };
        let outcome = match done.result {
            None => Ran::of(expired()),
            Some(Ok(value)) => {
                let external_id = done.told.external_id;
                let told = Told {
                    external_id: external_id.map(|id| clean_resource(&id).into_owned()),
                    ..done.told
                };
                Ran::Verdict(answer::verdict(value.as_ref()), told)
            }
            // SET CONSTRAINTS stays in force for the rest of the transaction, so a constraint
            // failure among others may be the batch's doing.
            Some(Err(failure)) if among_others && failure.code.starts_with("23") => Ran::Confirm,
            Some(Err(failure)) => Ran::of(verdict(&failure)),
        };
        set(&mut ran, *position, outcome);
    }
    Ok(ran)
}

fn set(ran: &mut [Ran], position: usize, outcome: Ran) {
    if let Some(slot) = ran.get_mut(position) {
        *slot = outcome;
    }
}

fn expired() -> Verdict {
    Verdict::payload_expired()
}

/// What an exception of the function means.
pub(super) fn verdict(failure: &SqlFailure) -> Verdict {
    match failure.code.as_str() {
        // A handler that would COMMIT or ROLLBACK does so at every try.
        PERMANENT | "2D000" => Verdict::Permanent {
            error: error_text::of_sql(failure),
        },
        _ => Verdict::Retry {
            after: None,
            error: error_text::of_sql(failure),
        },
    }
}
