//! Duplicate or conflict: what a known key's further copy is.

use crate::domain::Item;
use crate::provider::Provider;
use crate::store::ingest::KnownKey;

use super::Fate;

/// Judges a further copy under the rule stored with the first one.
///
/// Equal raw bytes are a duplicate. Else the copy's comparable content is digested under the
/// *stored* rule, so that a newer rule never turns an honest retry into a conflict.
pub(super) fn judge(known: &KnownKey, item: &Item, body: &[u8], provider: &dyn Provider) -> Fate {
    if known.raw_digest == item.raw_digest {
        return Fate::Duplicate;
    }
    let Some(first) = known.canonical_digest else {
        return Fate::Conflict;
    };
    let copy = if known.digest_rule == item.digest_rule {
        item.canonical_digest
    } else {
        body.get(item.range.clone())
            .and_then(|bytes| provider.comparable(known.digest_rule, bytes))
    };
    if copy == Some(first) {
        Fate::Duplicate
    } else {
        Fate::Conflict
    }
}
