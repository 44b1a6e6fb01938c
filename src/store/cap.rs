//! The claim for handlers whose caps hold over all nodes.
//!
//! Whoever claims for such a handler holds its row in `handler_cap` until the claim's COMMIT, so
//! the leases it counts include everybody's. Handlers without a cap never come here.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use crate::domain::flow::{Allowed, Standing, Taken};

use super::StoreError;
use super::connection::Connection;
use super::delivery::{self, Lease};
use super::quota::Quota;
use super::transaction::{Limits, Params, Transaction, expect_rows};

const LOCK: &str = include_str!("sql/cap_lock.sql");
const STANDING: &str = include_str!("sql/cap_standing.sql");
const SPEND: &str = include_str!("sql/cap_spend.sql");
const WAIT: &str = include_str!("sql/cap_wait.sql");
const GIVEN_BACK: &str = include_str!("sql/cap_given_back.sql");
const GIVE_BACK: &str = include_str!("sql/cap_give_back.sql");

/// Which rows are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// What is due.
    Due,
    /// One suspect.
    Suspect,
}

/// What a claim of capped handlers brought.
#[derive(Debug, Default)]
pub(crate) struct Capped {
    pub(crate) leases: Vec<Lease>,
    /// Handlers that got less than they asked for because of a cap.
    pub(crate) short: Vec<Short>,
}

/// A handler whose cap stood in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) handler_id: i32,
    /// How many the cap allowed: so many were asked for, divided among the priorities.
    pub(crate) allowed: u16,
    pub(crate) why: Why,
}

/// What stood in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Another node was claiming for it.
    Busy,
    /// As much as may be is under way.
    InFlight,
    /// No token of its rate is left; the next one comes after this time.
    Rate(Duration),
}

/// A handler that may be claimed for.
struct Granted {
    quota: Quota,
    allowed: Allowed,
    at: SystemTime,
    given_back: f64,
}

/// A token that a lease has taken of its handler's rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    taken: Taken,
    /// The claim's moment, by the database's clock.
    at: SystemTime,
}

/// Leases due deliveries of capped handlers within their caps.
///
/// # Errors
///
/// Nothing is leased, or it is leased under tokens that nobody holds and the reaper frees it.
pub(crate) async fn claim(
    connection: &Connection,
    quotas: &[Quota],
    wanted: Wanted,
) -> Result<Capped, StoreError> {
    let transaction = Transaction::begin(connection, Limits::SHORT).await?;
    let claimed = within(&transaction, quotas, wanted).await;
    transaction.end(claimed).await
}

async fn within(
    transaction: &Transaction<'_>,
    quotas: &[Quota],
    wanted: Wanted,
) -> Result<Capped, StoreError> {
    let mut capped = Capped::default();
    let mut granted = Vec::new();
    for grant in standing(transaction, quotas, &mut capped.short).await? {
        let (quota, allowed) = (grant.quota, grant.allowed);
        if allowed.count < quota.count {
            let why = allowed.wait.map_or(Why::InFlight, Why::Rate);
            capped.short.push(Short {
                handler_id: quota.handler_id,
                allowed: allowed.count,
                why,
            });
        }
        if allowed.count > 0 {
            granted.push(grant);
        }
    }
    if granted.is_empty() {
        return Ok(capped);
    }
    let quotas: Vec<Quota> = granted
        .iter()
        .map(|grant| Quota {
            count: grant.allowed.count,
            ..grant.quota
        })
        .collect();
    capped.leases = match wanted {
        Wanted::Due => delivery::claim_within(transaction, &quotas).await?,
        Wanted::Suspect => delivery::claim_suspect_within(transaction, &quotas).await?,
    };
    spend(transaction, &granted, &mut capped.leases).await?;
    Ok(capped)
}

/// Whether one of these handlers may claim as its caps stand, or will within this time; nothing is
/// locked, so that the claim decides anew. What `ends_first` names has leases here that end before.
pub(crate) async fn has_room(
    connection: &Connection,
    quotas: &[Quota],
    within: Duration,
    ends_first: impl Fn(i32) -> bool,
) -> Result<bool, StoreError> {
    let ids: Vec<i32> = quotas.iter().map(|quota| quota.handler_id).collect();
    let most = quotas.iter().filter_map(|q| q.cap.in_flight).max();
    let rows = connection
        .query_alone(STANDING, &[&ids, &i64::from(most.unwrap_or(0))])
        .await?;
    Ok(rows
        .iter()
        .filter_map(|row| granted(row, quotas))
        .any(|grant| match grant.allowed.wait {
            _ if grant.allowed.count > 0 => true,
            Some(wait) => wait <= within,
            None => ends_first(grant.quota.handler_id),
        }))
}

/// Locks the rows that can be had, and decides what each handler may claim.
async fn standing(
    transaction: &Transaction<'_>,
    quotas: &[Quota],
    short: &mut Vec<Short>,
) -> Result<Vec<Granted>, StoreError> {
    let ids: Vec<i32> = quotas.iter().map(|quota| quota.handler_id).collect();
    let rows = transaction.query(LOCK, &[&ids]).await?;
    let locked: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    short.extend(
        ids.iter()
            .filter(|id| !locked.contains(id))
            .map(|id| Short {
                handler_id: *id,
                allowed: 0,
                why: Why::Busy,
            }),
    );
    if locked.is_empty() {
        return Ok(Vec::new());
    }
    let most = quotas.iter().filter_map(|q| q.cap.in_flight).max();
    let rows = transaction
        .query(STANDING, &[&locked, &i64::from(most.unwrap_or(0))])
        .await?;
    Ok(rows.iter().filter_map(|row| granted(row, quotas)).collect())
}

/// What a handler may claim as its row of `cap_standing` says.
fn granted(row: &Row, quotas: &[Quota]) -> Option<Granted> {
    let id: i32 = row.get("handler_id");
    let quota = *quotas.iter().find(|quota| quota.handler_id == id)?;
    let standing = Standing {
        leased: u32::try_from(row.get::<_, i64>("leased")).unwrap_or(u32::MAX),
        tokens: row.get("tokens"),
        // A clock that was set back: no time has passed.
        since: Duration::try_from_secs_f64(row.get("since")).unwrap_or_default(),
    };
    Some(Granted {
        quota,
        allowed: quota.cap.allows(quota.count, standing),
        at: row.get("at"),
        given_back: row.get("given_back"),
    })
}

/// Writes what is left of the rates, and notes at the leases what they have taken.
async fn spend(
    transaction: &Transaction<'_>,
    granted: &[Granted],
    leases: &mut [Lease],
) -> Result<(), StoreError> {
    let (mut ids, mut tokens, mut moments) = (Vec::new(), Vec::new(), Vec::new());
    for grant in granted {
        let Some(rate) = grant.quota.cap.rate else {
            continue;
        };
        let id = grant.quota.handler_id;
        let of_it = |lease: &&mut Lease| lease.handler_id == id;
        let taken = leases.iter_mut().filter(of_it).count();
        if taken == 0 {
            continue;
        }
        let left = grant.allowed.tokens - f64::from(u16::try_from(taken).unwrap_or(u16::MAX));
        let taken = Taken {
            rate,
            left,
            given_back: grant.given_back,
        };
        let at = grant.at;
        for lease in leases.iter_mut().filter(of_it) {
            lease.rate_token = Some(Token { taken, at });
        }
        ids.push(id);
        tokens.push(left);
        moments.push(at);
    }
    if ids.is_empty() {
        return Ok(());
    }
    let written = transaction
        .execute(SPEND, &[&ids, &tokens, &moments])
        .await?;
    expect_rows("cap_spend", written, ids.len())
}

/// Runs a statement that puts leases back under which nothing was begun, and gives their tokens back with them.
pub(super) async fn put_back(
    connection: &Connection,
    leases: &[Lease],
    statement: &'static str,
    params: Params<'_>,
) -> Result<u64, StoreError> {
    if leases.iter().all(|lease| lease.rate_token.is_none()) {
        return connection.execute_alone(statement, params).await;
    }
    let transaction = Transaction::begin(connection, Limits::SHORT).await?;
    let done = async {
        let back = transaction.execute(statement, params).await?;
        give_back(&transaction, leases, back).await?;
        Ok(back)
    }
    .await;
    transaction.end(done).await
}

/// Gives the tokens of so many of these leases back, which are of one claim: nothing was begun under them, and this
/// transaction ends them or puts them back.
pub(crate) async fn give_back(
    transaction: &Transaction<'_>,
    leases: &[Lease],
    count: u64,
) -> Result<(), StoreError> {
    let Some((id, token)) = leases
        .iter()
        .find_map(|l| Some((l.handler_id, l.rate_token?)))
    else {
        return Ok(());
    };
    if count == 0 {
        return Ok(());
    }
    // The time that has passed is asked for when the lock is held: a claim may hold it for a while, and write nothing.
    let locked = transaction.query(WAIT, &[&id]).await?;
    expect_rows("cap_wait", locked.len() as u64, 1)?;
    let rows = transaction.query(GIVEN_BACK, &[&id, &token.at]).await?;
    let Some(row) = rows.first() else {
        return expect_rows("cap_given_back", 0, 1);
    };
    let since = Duration::try_from_secs_f64(row.get("since")).unwrap_or_default();
    let count = u16::try_from(count).unwrap_or(u16::MAX);
    let back = token.taken.back(count, since, row.get("given_back"));
    let written = transaction.execute(GIVE_BACK, &[&id, &back]).await?;
    expect_rows("cap_give_back", written, 1)
}
