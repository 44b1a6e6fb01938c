//! The `sql` kind with a database of its own: the function runs there, once for an effect key.
//!
//! One transaction there takes the key's row of the ledger, runs the function and keeps its answer. A try that is
//! lost needs nobody to find out how it ended: the next one finds the answer, or waits until the lost one has
//! ended and runs the function. So it is never uncertain, and no person is asked.

use std::time::Duration;

use crate::domain::Verdict;
use crate::store::StoreError;
use crate::store::handling::SqlFailure;
use crate::store::ledger::{self, Claimed, OtherDatabase, Returned, SqlEvent};
use crate::store::transaction::{Limits, Transaction};
use crate::telemetry::clean;

use super::super::ActiveHandler;
use super::external::Sent;
use super::function::Delivered;
use super::{answer, sql};

/// A try is given up so much later than its statements are, so that the server's own word comes first.
pub(super) const BEYOND_TIMEOUT: Duration = Duration::from_secs(2);
/// SQLSTATE of a statement that took longer than the time-out.
const CANCELLED: &str = "57014";
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Runs the function unless the ledger has its answer.
pub(super) async fn call(
    other: &OtherDatabase,
    handler: &ActiveHandler,
    event: &Delivered,
) -> Sent {
    let event = SqlEvent {
        id: event.id,
        source: &event.source,
        key: &event.key,
        event_type: event.event_type.as_deref(),
        entity: event.entity.as_deref(),
        occurred_at: event.occurred_at,
        received_at: event.received_at,
        body: &event.body,
        effect_key: &event.effect_key,
        run: i32::from(event.run),
        attempt: event.attempt,
    };
    match once(other, handler, &event).await {
        Ok(sent) => sent,
        Err(error) => not_done(&error),
    }
}

/// One transaction. An error leaves nothing there.
async fn once(
    other: &OtherDatabase,
    handler: &ActiveHandler,
    event: &SqlEvent<'_>,
) -> Result<Sent, StoreError> {
    let function = other.ready().await?;
    let connection = other.connection().await?;
    let timeout = handler.spec.timeout;
    let limits = Limits {
        statement: timeout,
        idle: Limits::SHORT.idle,
        lock: timeout,
    };
    let begun = ledger::begin(&connection, limits, &handler.spec.name, event).await;
    let (transaction, claimed) = match begun {
        Err(error) if is_busy(&error) => {
            let error = "an earlier try is still under way in its database".to_owned();
            return Ok(answered(Verdict::Retry { after: None, error }));
        }
        begun => begun?,
    };
    if let Claimed::Applied(known) = claimed {
        return Ok(committed(transaction, answer::verdict(known.as_ref())).await);
    }
    let value = match ledger::run(&transaction, function, event).await {
        Ok(Returned::Answer(value)) => value,
        Ok(Returned::OfType(other)) => {
            transaction.undo().await;
            let error = format!("the function returns {other} now: it must return void or jsonb");
            return Ok(answered(Verdict::Retry {
                after: None,
                error: clean(&error).into_owned(),
            }));
        }
        Err(error) => {
            let sent = failed(&error, timeout);
            transaction.rollback(&error).await;
            return Ok(sent);
        }
    };
    let verdict = answer::verdict(value.as_ref());
    if !matches!(
        verdict,
        Verdict::Done { .. } | Verdict::Failed { .. } | Verdict::Skip { .. }
    ) {
        transaction.undo().await;
        return Ok(answered(verdict));
    }
    match ledger::keep(&transaction, event, value.as_ref()).await {
        Ok(()) => Ok(committed(transaction, verdict).await),
        Err(error) => {
            transaction.rollback(&error).await;
            match error {
                StoreError::RowCount { .. } => Ok(answered(Verdict::Permanent {
                    error: "the handler has ended its transaction, or changed its row of the ledger or the setting oncehook.effect_key"
                        .to_owned(),
                })),
                error => Err(error),
            }
        }
    }
}

fn answered(verdict: Verdict) -> Sent {
    Sent {
        works: Some(true),
        ..Sent::of(verdict)
    }
}

/// COMMIT, and what is known then. That of a known answer counts too: it waits for the standbys.
async fn committed(transaction: Transaction<'_>, verdict: Verdict) -> Sent {
    match transaction.commit().await {
        Ok(()) => answered(verdict),
        // Whichever way it ended, the ledger tells the next try.
        Err(error) => Sent {
            works: Some(false),
            ..Sent::of(Verdict::Unknown {
                after: None,
                error: format!("COMMIT in its database: {error}"),
            })
        },
    }
}

/// What the function's own statement ended with.
fn failed(error: &StoreError, timeout: Duration) -> Sent {
    let failure = match error {
        StoreError::Statement(error) => SqlFailure::of(error),
        _ => None,
    };
    let Some(failure) = failure else {
        return not_done(error);
    };
    if failure.code == CANCELLED {
        return Sent {
            works: Some(false),
            ..Sent::of(Verdict::Retry {
                after: None,
                error: format!("the handler took longer than its time-out of {timeout:?}"),
            })
        };
    }
    Sent {
        works: Some(!is_the_servers(&failure.code)),
        ..Sent::of(sql::verdict(&failure))
    }
}

/// Whether the error says that the server does not work, rather than something of this event: connections,
/// resources, shutdown, system.
fn is_the_servers(code: &str) -> bool {
    matches!(code.get(..2), Some("08" | "53" | "57" | "58" | "XX"))
}

fn is_busy(error: &StoreError) -> bool {
    error
        .sqlstate()
        .is_some_and(|code| [CANCELLED, LOCK_NOT_AVAILABLE].contains(&code.code()))
}

/// Nothing was applied. The first line is the reason, what may follow is how to mend it.
fn not_done(error: &StoreError) -> Sent {
    let said = error.to_string();
    let reason = said.lines().next().unwrap_or_default();
    Sent {
        works: Some(false),
        ..Sent::of(Verdict::Retry {
            after: None,
            error: clean(&format!("its database: {reason}")).into_owned(),
        })
    }
}
