//! One batch: one transaction, one answer per request.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::domain::{Digest, EventKey, EventState, Item, Reading, Route};
use crate::provider::operation::Operation;
use crate::store::connection::Connection;
use crate::store::ingest::{self, KnownKey, NewConflict, NewItem, NewReceipt, NewRequest};
use crate::store::lanes::LaneOf;
use crate::store::operation;
use crate::store::transaction::{
    Transaction, is_connection_error, is_missing_partition, is_stale_session, is_transient,
};
use crate::store::{Store, StoreError};
use crate::telemetry;

use super::judge::judge;
use super::renew::renew;
use super::{Fate, Origin, Receipt, Submission, Unavailable};

/// Tries of a batch that meets a deadlock, a serialization failure or a lock time-out. Together
/// with the pauses they stay well inside the time a sender waits.
const TRIES: u32 = 4;

/// Longest that a whole batch may take; then its connection is given up.
const BATCH_TIME: Duration = Duration::from_secs(30);

/// What a request gets: its receipt, or word that it is not durable.
pub(crate) type Answer = Result<Receipt, Unavailable>;

const DATABASE: Unavailable = Unavailable { reason: "database" };

/// Writes the requests and answers each in order.
///
/// An error of the data is searched by halving the batch, so that one bad request never harms its
/// neighbours; one that fails alone is kept as unreadable. After an error of the database every
/// request is answered "not durable".
pub(crate) async fn write(store: &Store, batch: &[&Submission]) -> Vec<Answer> {
    write_within(store, batch, BATCH_TIME).await
}

/// The same within another time.
pub(crate) async fn write_within(
    store: &Store,
    batch: &[&Submission],
    time: Duration,
) -> Vec<Answer> {
    let began = Instant::now();
    let answers = match tokio::time::timeout(time, divide(store, batch)).await {
        Ok(answers) => answers,
        // The connection went with the future: it is unclean, so the pool drops it.
        Err(_) => vec![Err(Unavailable { reason: "too_slow" }); batch.len()],
    };
    telemetry::batch(batch.len());
    telemetry::commit_took(began.elapsed());
    answers
}

async fn divide(store: &Store, batch: &[&Submission]) -> Vec<Answer> {
    // Not recursive: halves wait on a stack, the left one on top, so answers come in order.
    let mut answers = Vec::with_capacity(batch.len());
    let mut waiting = vec![batch];
    while let Some(part) = waiting.pop() {
        match with_retries(store, part).await {
            Ok(receipts) => answers.extend(receipts.into_iter().map(Ok)),
            Err(error) if is_data_error(&error) => match part {
                [alone] => answers.push(as_unreadable(store, alone, &error).await),
                many => {
                    let (left, right) = many.split_at(many.len() / 2);
                    waiting.push(right);
                    waiting.push(left);
                }
            },
            Err(error) => {
                if emitted(part).len() == part.len() {
                    tracing::warn!(error = %error, events = part.len(), "emitted events are not known to be stored; what is not comes again");
                } else {
                    tracing::error!(error = %error, requests = part.len(), "batch not stored");
                }
                answers.extend(part.iter().map(|_| Err(DATABASE)));
            }
        }
    }
    answers
}

async fn with_retries(store: &Store, batch: &[&Submission]) -> Result<Vec<Receipt>, StoreError> {
    let mut tries = 0;
    let mut unsure = None;
    loop {
        tries += 1;
        let error = match once(store, batch).await {
            Ok(receipts) => return Ok(receipts),
            Err(unstored) => {
                unsure = unstored.unsure.or(unsure);
                unstored.error
            }
        };
        if unsure.is_some()
            && have_left(store, batch).await
            && let Some(receipts) = unsure
        {
            tracing::info!(error = %error, events = batch.len(), "the reply to a COMMIT was lost; what was emitted is stored");
            return Ok(receipts);
        }
        let again =
            is_transient(&error) || is_missing_partition(&error) || is_stale_connection(&error);
        if !again || tries >= TRIES {
            return Err(error);
        }
        tracing::warn!(error = %error, tries, requests = batch.len(), "batch is tried again");
        if is_missing_partition(&error) {
            store.make_partitions().await?;
        } else {
            tokio::time::sleep(Duration::from_millis(5) * 4_u32.pow(tries - 1)).await;
        }
    }
}

/// Why a batch is not known to be stored.
struct Unstored {
    error: StoreError,
    /// Its receipts, if its COMMIT may have gone through.
    unsure: Option<Vec<Receipt>>,
}

impl From<StoreError> for Unstored {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            unsure: None,
        }
    }
}

/// The places in the outbox of what was emitted.
fn emitted(batch: &[&Submission]) -> Vec<i64> {
    let place = |submission: &&Submission| match submission.origin {
        Origin::Emitted { id, .. } => Some(id),
        Origin::Request => None,
    };
    batch.iter().filter_map(place).collect()
}

/// Whether a whole batch has left the outbox, which it leaves in the transaction that stores it. A request
/// leaves no such trace: its batch is written again, and finds itself.
async fn have_left(store: &Store, batch: &[&Submission]) -> bool {
    let ids = emitted(batch);
    ids.len() == batch.len() && store.have_left_outbox(&ids).await.unwrap_or(false)
}

/// One transaction over the whole batch.
async fn once(store: &Store, batch: &[&Submission]) -> Result<Vec<Receipt>, Unstored> {
    let connection = store.ingest().await?;
    let requests: Vec<NewRequest<'_>> = batch.iter().map(|s| new_request(s)).collect();
    let items: Vec<NewItem<'_>> = batch
        .iter()
        .enumerate()
        .flat_map(|(request, s)| {
            s.items
                .iter()
                .enumerate()
                .map(move |(n, item)| new_item(request, item, s.routes.get(n), s))
        })
        .collect();
    if items.is_empty() {
        // Nothing to store: an empty batch of a provider (zero items) is simply acknowledged.
        return Ok(batch
            .iter()
            .map(|_| Receipt { items: Vec::new() })
            .collect());
    }
    let written = reserve_and_record(&connection, batch, &requests, &items).await;
    // Also after an error: a COMMIT whose answer was lost may have gone through. No answer waits.
    store.recheck_lanes(lanes_of(&items));
    let (fates, committed) = written?;
    // The answers are built before this point; nothing below can fail.
    let mut fates = fates.into_iter();
    let receipts = batch
        .iter()
        .map(|s| Receipt {
            items: fates.by_ref().take(s.items.len()).collect(),
        })
        .collect();
    match committed {
        Ok(()) => Ok(receipts),
        Err(error) => Err(Unstored {
            unsure: is_connection_error(&error).then_some(receipts),
            error,
        }),
    }
}

/// Where deliveries of a batch wait for their turn.
fn lanes_of(items: &[NewItem<'_>]) -> impl Iterator<Item = LaneOf> {
    let routes = items.iter().flat_map(|item| item.routes);
    routes.filter_map(|route| {
        let lane = route.lane.as_ref()?;
        Some((route.handler, lane.as_str().to_owned()))
    })
}

/// Writes the batch; what became of each item, and what became of the COMMIT.
async fn reserve_and_record(
    connection: &Connection,
    batch: &[&Submission],
    requests: &[NewRequest<'_>],
    items: &[NewItem<'_>],
) -> Result<(Vec<(Uuid, Fate)>, Result<(), StoreError>), StoreError> {
    let (transaction, won) = ingest::reserve(connection, requests, items).await?;
    let recorded: Result<_, StoreError> = async {
        let fates = settle_losers(&transaction, (batch, requests), items, &won).await?;
        let emitted = emitted(batch);
        if !emitted.is_empty() {
            ingest::take_emitted(&transaction, &emitted).await?;
        }
        Ok(fates)
    }
    .await;
    match recorded {
        Ok(fates) => Ok((fates, transaction.commit().await)),
        Err(error) => {
            transaction.rollback(&error).await;
            Err(error)
        }
    }
}

/// Reads the losers in a statement of their own, judges them, records receipts and conflicts.
async fn settle_losers(
    transaction: &Transaction<'_>,
    (batch, requests): (&[&Submission], &[NewRequest<'_>]),
    items: &[NewItem<'_>],
    won: &[Option<Uuid>],
) -> Result<Vec<(Uuid, Fate)>, StoreError> {
    let losers: Vec<&NewItem<'_>> = items
        .iter()
        .zip(won)
        .filter(|(_, won)| won.is_none())
        .map(|(item, _)| item)
        .collect();
    let known = if losers.is_empty() {
        Vec::new()
    } else {
        let keys: Vec<(i32, &str)> = losers
            .iter()
            .map(|l| {
                (
                    batch.get(l.request).map_or(0, |s| s.source_id),
                    l.item.key.as_str(),
                )
            })
            .collect();
        ingest::known(transaction, &keys).await?
    };
    let renewed = renew(transaction, batch, requests, &losers, &known).await?;

    let mut fates = Vec::with_capacity(items.len());
    let mut receipts: HashMap<(Uuid, &str), i32> = HashMap::new();
    let mut conflicts = Vec::new();
    let mut known = known.into_iter().enumerate();
    for (item, won) in items.iter().zip(won) {
        if let Some(event_id) = won {
            fates.push((*event_id, Fate::New));
            continue;
        }
        let Some(submission) = batch.get(item.request) else {
            continue;
        };
        // Gone between the two statements: the whole batch is tried once more.
        let gone = StoreError::RowCount {
            statement: "ingest_known",
            changed: 0,
            expected: 1,
        };
        let Some((at, Some(first))) = known.next() else {
            return Err(gone);
        };
        if let Some(event_id) = renewed.won(at) {
            fates.push((event_id, Fate::New));
            continue;
        }
        let now = renewed.named(submission.source_id, item.item.key.as_str());
        let first = now.cloned().unwrap_or(first);
        let fate = judged(transaction, submission, item.item, &first).await?;
        *receipts
            .entry((first.event_id, submission.request.secret_label.as_str()))
            .or_default() += 1;
        if fate == Fate::Conflict {
            conflicts.push(new_conflict(submission, item.item, &first));
        }
        fates.push((first.event_id, fate));
    }
    if !receipts.is_empty() {
        let mut receipts: Vec<NewReceipt<'_>> = receipts
            .into_iter()
            .map(|((event_id, secret_label), count)| NewReceipt {
                event_id,
                count,
                secret_label,
            })
            .collect();
        receipts.sort_by_key(|r| r.event_id);
        ingest::record_known(transaction, &receipts, &conflicts).await?;
    }
    Ok(fates)
}

/// Duplicate or conflict. A rule that is newer than this node's configuration is read.
async fn judged(
    transaction: &Transaction<'_>,
    submission: &Submission,
    item: &Item,
    first: &KnownKey,
) -> Result<Fate, StoreError> {
    let body = &submission.request.body;
    let provider = submission.source.provider.as_ref();
    if provider.knows_rule(first.digest_rule) {
        return Ok(judge(first, item, body, provider));
    }
    let rules = operation::rules(transaction, submission.source_id).await?;
    let stored = Operation::new(rules, 0, None);
    Ok(judge(first, item, body, &stored))
}

fn new_request(submission: &Submission) -> NewRequest<'_> {
    let request = &submission.request;
    NewRequest {
        source_id: submission.source_id,
        body: &request.body,
        headers: &request.headers,
        method: &request.method,
        path: &request.path,
        query: request.query.as_deref(),
        peer: request.peer,
        secret_label: &request.secret_label,
        correlation_id: request.correlation_id,
    }
}

fn new_item<'a>(
    request: usize,
    item: &'a Item,
    routes: Option<&'a Vec<Route>>,
    submission: &Submission,
) -> NewItem<'a> {
    let routes: &[Route] = routes.map(Vec::as_slice).unwrap_or_default();
    let (state, routes): (_, &[Route]) = match item.reading {
        Reading::Unreadable(reason) => (Some((EventState::Unreadable, Some(reason))), &[]),
        Reading::Ignored(reason) => (Some((EventState::Ignored, Some(reason))), &[]),
        Reading::Event if routes.is_empty() => (Some((EventState::Unrecognized, None)), &[]),
        Reading::Event => (None, routes),
    };
    NewItem {
        request,
        item,
        state,
        keep_key: submission.source.provider.keep_key(),
        caused_by: match submission.origin {
            Origin::Request => None,
            Origin::Emitted { caused_by, .. } => caused_by,
        },
        routes,
    }
}

fn new_conflict<'a>(
    submission: &'a Submission,
    item: &'a Item,
    first: &KnownKey,
) -> NewConflict<'a> {
    NewConflict {
        source_id: submission.source_id,
        key: item.key.as_str(),
        raw_digest: item.raw_digest,
        event_id: first.event_id,
        first_digest: first.raw_digest,
        body: submission
            .request
            .body
            .get(item.range.clone())
            .unwrap_or_default(),
        secret_label: &submission.request.secret_label,
    }
}

/// Keeps a verified request that PostgreSQL refuses as read: whole, as one unreadable event
/// without any text of the provider. A retry could not mend it, so it is acknowledged.
async fn as_unreadable(store: &Store, submission: &Submission, cause: &StoreError) -> Answer {
    tracing::error!(error = %cause, source = %submission.source.name, "verified request is kept as unreadable");
    let digest = Digest::of(&submission.request.body);
    let whole = Item {
        key: EventKey::of_digest(&digest),
        provider_id: None,
        event_type: None,
        entity: None,
        account: None,
        mode: None,
        occurred_at: None,
        range: 0..submission.request.body.len(),
        raw_digest: digest,
        canonical_digest: None,
        digest_rule: 0,
        reading: Reading::Unreadable("the database refused what was read"),
    };
    let mut plain = submission.clone();
    plain.request.query = None;
    plain.request.path = String::new();
    plain.items = vec![whole];
    plain.routes = vec![Vec::new()];
    let stored = with_retries(store, &[&plain]).await;
    match stored.map(|receipts| receipts.into_iter().next()) {
        Ok(Some(receipt)) => {
            telemetry::unreadable(&submission.source.name);
            // One id stands for every item, so that the answer has the due number.
            let id = receipt.items.first().copied();
            Ok(Receipt {
                items: submission.items.iter().filter_map(|_| id).collect(),
            })
        }
        _ => Err(DATABASE),
    }
}

/// Class 22 (data), 23 (constraint) and 54 (a limit of the program, such as an index row's size).
fn is_data_error(error: &StoreError) -> bool {
    matches!(error.sqlstate_class(), Some("22" | "23" | "54")) && !is_missing_partition(error)
}

/// A pooled connection that died while it lay idle, leads to a primary that was demoted, or whose
/// prepared statements are gone: a fresh one may do. A COMMIT whose reply was lost lands here too: the second try finds its own
/// keys and answers as for a duplicate, which is true.
fn is_stale_connection(error: &StoreError) -> bool {
    matches!(error, StoreError::Statement(_)) && is_connection_error(error)
        || is_stale_session(error)
        || matches!(error, StoreError::RowCount { .. })
}
