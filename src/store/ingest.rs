//! The statements of one ingest transaction: reserve first, read the losers in the next
//! statement, record what was known.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::domain::{Digest, EventState, Item, Lane, Route};

use super::StoreError;
use super::connection::Connection;
use super::transaction::{Limits, Transaction, expect_rows};

const RESERVE: &str = include_str!("sql/ingest_reserve.sql");
const RENEW_LOCK: &str = include_str!("sql/ingest_renew_lock.sql");
const RENEW: &str = include_str!("sql/ingest_renew.sql");
const KNOWN: &str = include_str!("sql/ingest_known.sql");
const EMITTED_STORED: &str = include_str!("sql/emitted_stored.sql");
const RECEIPTS: &str = include_str!("sql/ingest_receipts.sql");
const CONFLICTS: &str = include_str!("sql/ingest_conflicts.sql");

/// A raw request to keep.
#[derive(Debug)]
pub(crate) struct NewRequest<'a> {
    pub(crate) source_id: i32,
    pub(crate) body: &'a [u8],
    pub(crate) headers: &'a [u8],
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) secret_label: &'a str,
    pub(crate) correlation_id: Uuid,
}

/// An item to reserve.
#[derive(Debug)]
pub(crate) struct NewItem<'a> {
    /// Index of its request in the batch.
    pub(crate) request: usize,
    pub(crate) item: &'a Item,
    /// State fixed at insert, with the reason for people.
    pub(crate) state: Option<(EventState, Option<&'a str>)>,
    /// The event whose handler emitted it.
    pub(crate) caused_by: Option<Uuid>,
    /// How long its key names it; `None`: for ever.
    pub(crate) keep_key: Option<Duration>,
    /// Handlers it is fanned out to; empty when it has a fixed state.
    pub(crate) routes: &'a [Route],
}

/// What is stored under a known key.
#[derive(Debug, Clone)]
pub(crate) struct KnownKey {
    pub(crate) event_id: Uuid,
    pub(crate) raw_digest: Digest,
    pub(crate) canonical_digest: Option<Digest>,
    pub(crate) digest_rule: i16,
    /// Its time is over, by the database's clock: it may name another event.
    pub(crate) expired: bool,
}

/// A further copy of a known event.
#[derive(Debug)]
pub(crate) struct NewReceipt<'a> {
    pub(crate) event_id: Uuid,
    pub(crate) count: i32,
    pub(crate) secret_label: &'a str,
}

/// Other content under a known key.
#[derive(Debug)]
pub(crate) struct NewConflict<'a> {
    pub(crate) source_id: i32,
    pub(crate) key: &'a str,
    pub(crate) raw_digest: Digest,
    pub(crate) event_id: Uuid,
    pub(crate) first_digest: Digest,
    pub(crate) body: &'a [u8],
    pub(crate) secret_label: &'a str,
}

/// Begins the transaction and reserves the keys: per item its new event id, or `None` when the
/// key is known.
#[expect(clippy::too_many_lines, reason = "a table of columns, one line each")]
pub(crate) async fn reserve<'c, 'a>(
    connection: &'c Connection,
    requests: &[NewRequest<'_>],
    items: &'a [NewItem<'_>],
) -> Result<(Transaction<'c>, Vec<Option<Uuid>>), StoreError> {
    // Prepared before BEGIN, so that BEGIN and the statement travel together.
    let statement = connection.prepared(RESERVE).await?;

    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let r_no: Vec<i32> = (0..requests.len()).map(number).collect();
    let r_source: Vec<i32> = requests.iter().map(|r| r.source_id).collect();
    let r_body: Vec<&[u8]> = requests.iter().map(|r| r.body).collect();
    let r_headers: Vec<&[u8]> = requests.iter().map(|r| r.headers).collect();
    let r_method: Vec<&str> = requests.iter().map(|r| r.method).collect();
    let r_path: Vec<&str> = requests.iter().map(|r| r.path).collect();
    let r_query: Vec<Option<&str>> = requests.iter().map(|r| r.query).collect();
    let r_peer: Vec<Option<String>> = requests
        .iter()
        .map(|r| r.peer.map(|p| p.to_string()))
        .collect();
    let r_label: Vec<&str> = requests.iter().map(|r| r.secret_label).collect();
    let r_correlation: Vec<Uuid> = requests.iter().map(|r| r.correlation_id).collect();

    let source_of = |i: &NewItem<'_>| requests.get(i.request).map_or(0, |r| r.source_id);
    let i_no: Vec<i32> = (0..items.len()).map(number).collect();
    let i_request: Vec<i32> = items.iter().map(|i| number(i.request)).collect();
    let i_source: Vec<i32> = items.iter().map(source_of).collect();
    let i_key: Vec<&str> = items.iter().map(|i| i.item.key.as_str()).collect();
    let i_raw: Vec<&[u8]> = items
        .iter()
        .map(|i| i.item.raw_digest.as_bytes().as_slice())
        .collect();
    let i_canonical: Vec<Option<&[u8]>> = items
        .iter()
        .map(|i| {
            i.item
                .canonical_digest
                .as_ref()
                .map(|d| d.as_bytes().as_slice())
        })
        .collect();
    let i_rule: Vec<i16> = items.iter().map(|i| i.item.digest_rule).collect();
    let i_offset: Vec<i32> = items.iter().map(|i| number(i.item.range.start)).collect();
    let i_length: Vec<i32> = items.iter().map(|i| number(i.item.range.len())).collect();
    let i_provider: Vec<Option<&str>> = items
        .iter()
        .map(|i| i.item.provider_id.as_deref())
        .collect();
    let i_type: Vec<Option<&str>> = items.iter().map(|i| i.item.event_type.as_deref()).collect();
    let i_entity: Vec<Option<&str>> = items.iter().map(|i| i.item.entity.as_deref()).collect();
    let i_account: Vec<Option<&str>> = items.iter().map(|i| i.item.account.as_deref()).collect();
    let i_mode: Vec<Option<&str>> = items
        .iter()
        .map(|i| i.item.mode.map(crate::domain::Mode::as_str))
        .collect();
    let i_occurred: Vec<Option<SystemTime>> = items
        .iter()
        .map(|i| i.item.occurred_at.and_then(system_time))
        .collect();
    let i_state: Vec<Option<&str>> = items
        .iter()
        .map(|i| i.state.map(|(s, _)| s.as_str()))
        .collect();
    let i_reason: Vec<Option<&str>> = items
        .iter()
        .map(|i| i.state.and_then(|(_, reason)| reason))
        .collect();
    let i_routes: Vec<String> = items
        .iter()
        .map(|i| {
            format!(
                "{{{}}}",
                i.routes
                    .iter()
                    .map(|route| route.handler.to_string())
                    .collect::<Vec<_>>()
                    .join(",")
            )
        })
        .collect();

    let fan_out = || {
        let of = |(no, item): (usize, &'a NewItem<'_>)| item.routes.iter().map(move |r| (no, r));
        items.iter().enumerate().flat_map(of)
    };
    let f_no: Vec<i32> = fan_out().map(|(no, _)| number(no)).collect();
    let f_handler: Vec<i32> = fan_out().map(|(_, route)| route.handler).collect();
    let f_lane: Vec<Option<&str>> = fan_out()
        .map(|(_, route)| route.lane.as_ref().map(Lane::as_str))
        .collect();

    let f_priority: Vec<i16> = fan_out()
        .map(|(_, route)| route.priority.number())
        .collect();

    let i_cause: Vec<Option<Uuid>> = items.iter().map(|i| i.caused_by).collect();

    let i_keep: Vec<Option<f64>> = items
        .iter()
        .map(|i| i.keep_key.map(|k| k.as_secs_f64()))
        .collect();

    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 34] = [
        &r_no,
        &r_source,
        &r_body,
        &r_headers,
        &r_method,
        &r_path,
        &r_query,
        &r_peer,
        &r_label,
        &r_correlation,
        &i_no,
        &i_request,
        &i_source,
        &i_key,
        &i_raw,
        &i_canonical,
        &i_rule,
        &i_offset,
        &i_length,
        &i_provider,
        &i_type,
        &i_entity,
        &i_account,
        &i_mode,
        &i_occurred,
        &i_state,
        &i_reason,
        &i_routes,
        &f_no,
        &f_handler,
        &f_lane,
        &i_cause,
        &f_priority,
        &i_keep,
    ];
    // Sent back to back: one round trip. A statement behind a failed BEGIN text fails too.
    let (transaction, rows) = tokio::join!(
        biased;
        Transaction::begin(connection, Limits::SHORT),
        statement.query(connection.client(), &params),
    );
    let transaction = transaction?;
    let rows = match rows {
        Ok(rows) => rows,
        Err(error) => {
            transaction.rollback(&error).await;
            return Err(error);
        }
    };
    let mut won = vec![None; items.len()];
    for row in rows {
        let no: i32 = row.get(0);
        if let Some(slot) = usize::try_from(no).ok().and_then(|n| won.get_mut(n)) {
            *slot = Some(row.get(1));
        }
    }
    Ok((transaction, won))
}

/// Removes emitted events from the outbox that this transaction stores.
pub(crate) async fn take_emitted(
    transaction: &Transaction<'_>,
    ids: &[i64],
) -> Result<(), StoreError> {
    let taken = transaction.execute(EMITTED_STORED, &[&ids]).await?;
    expect_rows("emitted_stored", taken, ids.len())
}

/// Has an expired key name this item in place of `old`, and stores it; `None`: another was quicker, or something
/// of the old event is open.
pub(crate) async fn renew(
    transaction: &Transaction<'_>,
    request: &NewRequest<'_>,
    new: &NewItem<'_>,
    old: Uuid,
) -> Result<Option<Uuid>, StoreError> {
    let (source, key) = (request.source_id, new.item.key.as_str());
    let locked = transaction
        .query(RENEW_LOCK, &[&source, &key, &old])
        .await?;
    if locked.is_empty() {
        return Ok(None);
    }
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let handlers: Vec<i32> = new.routes.iter().map(|route| route.handler).collect();
    let lanes = new.routes.iter().map(|r| r.lane.as_ref().map(Lane::as_str));
    let lanes: Vec<Option<&str>> = lanes.collect();
    let priorities: Vec<i16> = new.routes.iter().map(|r| r.priority.number()).collect();
    let raw = new.item.raw_digest.as_bytes().as_slice();
    let canonical = new.item.canonical_digest.as_ref();
    let rows = transaction
        .query(
            RENEW,
            &[
                &source,
                &key,
                &old,
                &raw,
                &canonical.map(|digest| digest.as_bytes().as_slice()),
                &new.item.digest_rule,
                &new.keep_key.map(|time| time.as_secs_f64()),
                &request.body,
                &request.headers,
                &request.method,
                &request.path,
                &request.query,
                &request.peer.map(|peer| peer.to_string()),
                &request.secret_label,
                &request.correlation_id,
                &number(new.item.range.start),
                &number(new.item.range.len()),
                &handlers,
                &lanes,
                &priorities,
            ],
        )
        .await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// Reads the losers; `None` for a key that is gone again, which must be reserved once more.
pub(crate) async fn known(
    transaction: &Transaction<'_>,
    keys: &[(i32, &str)],
) -> Result<Vec<Option<KnownKey>>, StoreError> {
    let sources: Vec<i32> = keys.iter().map(|(source, _)| *source).collect();
    let texts: Vec<&str> = keys.iter().map(|(_, key)| *key).collect();
    let mut found: Vec<Option<KnownKey>> = vec![None; keys.len()];
    for row in transaction.query(KNOWN, &[&sources, &texts]).await? {
        let no: i32 = row.get(0);
        let digest = |column: usize| {
            row.get::<_, Option<&[u8]>>(column)
                .and_then(Digest::from_bytes)
        };
        let slot = usize::try_from(no)
            .ok()
            .and_then(|n| n.checked_sub(1))
            .and_then(|n| found.get_mut(n));
        if let (Some(slot), Some(raw_digest)) = (slot, digest(2)) {
            *slot = Some(KnownKey {
                event_id: row.get(1),
                raw_digest,
                canonical_digest: digest(3),
                digest_rule: row.get(4),
                expired: row.get::<_, Option<bool>>(5).unwrap_or(false),
            });
        }
    }
    Ok(found)
}

/// Records further copies and conflicts.
pub(crate) async fn record_known(
    transaction: &Transaction<'_>,
    receipts: &[NewReceipt<'_>],
    conflicts: &[NewConflict<'_>],
) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = receipts.iter().map(|r| r.event_id).collect();
    let counts: Vec<i32> = receipts.iter().map(|r| r.count).collect();
    let labels: Vec<&str> = receipts.iter().map(|r| r.secret_label).collect();
    transaction
        .execute(RECEIPTS, &[&ids, &counts, &labels])
        .await?;
    if conflicts.is_empty() {
        return Ok(());
    }
    let sources: Vec<i32> = conflicts.iter().map(|c| c.source_id).collect();
    let keys: Vec<&str> = conflicts.iter().map(|c| c.key).collect();
    let raw: Vec<&[u8]> = conflicts
        .iter()
        .map(|c| c.raw_digest.as_bytes().as_slice())
        .collect();
    let events: Vec<Uuid> = conflicts.iter().map(|c| c.event_id).collect();
    let first: Vec<&[u8]> = conflicts
        .iter()
        .map(|c| c.first_digest.as_bytes().as_slice())
        .collect();
    let bodies: Vec<&[u8]> = conflicts.iter().map(|c| c.body).collect();
    let labels: Vec<&str> = conflicts.iter().map(|c| c.secret_label).collect();
    transaction
        .execute(
            CONFLICTS,
            &[&sources, &keys, &raw, &events, &first, &bodies, &labels],
        )
        .await?;
    Ok(())
}

/// A time PostgreSQL can hold and a provider can mean; anything else is left out, since it only
/// informs.
fn system_time(at: jiff::Timestamp) -> Option<SystemTime> {
    (at >= jiff::Timestamp::UNIX_EPOCH)
        .then(|| SystemTime::try_from(at).ok())
        .flatten()
}
