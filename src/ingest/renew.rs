//! Expired keys of operations: they name the next intent that comes, unless something of the last is open.

use std::collections::HashMap;

use uuid::Uuid;

use crate::store::StoreError;
use crate::store::ingest::{self, KnownKey, NewItem, NewRequest};
use crate::store::transaction::Transaction;

use super::Submission;

/// What keys name since this batch has looked at them anew.
#[derive(Debug, Default)]
pub(super) struct Renewed {
    named: HashMap<i32, HashMap<String, KnownKey>>,
    /// Items that have become the intents of their keys, by their place among the losers.
    won: HashMap<usize, Uuid>,
}

impl Renewed {
    /// The event of an item that has renewed its key.
    pub(super) fn won(&self, loser: usize) -> Option<Uuid> {
        self.won.get(&loser).copied()
    }

    fn set(&mut self, (source, key): (i32, &str), now: KnownKey) {
        let of_source = self.named.entry(source).or_default();
        of_source.insert(key.to_owned(), now);
    }

    /// What the key names now, if it was looked at anew.
    pub(super) fn named(&self, source: i32, key: &str) -> Option<&KnownKey> {
        self.named.get(&source)?.get(key)
    }
}

/// Renews those of the losers' keys that have expired, in key order. Of copies in one batch the first one wins,
/// and the others are compared with it. For webhooks there are none, and nothing is sent.
pub(super) async fn renew(
    transaction: &Transaction<'_>,
    batch: &[&Submission],
    requests: &[NewRequest<'_>],
    losers: &[&NewItem<'_>],
    known: &[Option<KnownKey>],
) -> Result<Renewed, StoreError> {
    let mut renewed = Renewed::default();
    let expired = losers.iter().zip(known).enumerate();
    let mut expired: Vec<((i32, &str), usize, &KnownKey)> = expired
        .filter_map(|(at, (loser, known))| {
            let known = known.as_ref().filter(|known| known.expired)?;
            let source = batch.get(loser.request)?.source_id;
            Some(((source, loser.item.key.as_str()), at, known))
        })
        .collect();
    expired.sort_by_key(|(key, at, _)| (*key, *at));
    for (key, at, known) in expired {
        let (Some(loser), false) = (losers.get(at), renewed.named(key.0, key.1).is_some()) else {
            continue;
        };
        let Some(request) = requests.get(loser.request) else {
            continue;
        };
        if let Some(event_id) = ingest::renew(transaction, request, loser, known.event_id).await? {
            renewed.won.insert(at, event_id);
            let now = KnownKey {
                event_id,
                raw_digest: loser.item.raw_digest,
                canonical_digest: loser.item.canonical_digest,
                digest_rule: loser.item.digest_rule,
                expired: false,
            };
            renewed.set(key, now);
            continue;
        }
        // Something of it is open, or another was quicker.
        let read = ingest::known(transaction, &[key]).await?;
        if let Some(now) = read.into_iter().next().flatten() {
            renewed.set(key, now);
        }
    }
    Ok(renewed)
}
