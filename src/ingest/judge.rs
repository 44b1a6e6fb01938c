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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::domain::{Digest, EventKey, Reading};
    use crate::provider::Source;

    fn stripe() -> Source {
        Source::new(
            "shop",
            "stripe",
            &[("main", "whsec_VjQ3c2Q5ZkxwMnhUYTZiWmUxUm04SG4")],
        )
        .unwrap()
    }

    fn item(source: &Source, rule: i16, body: &[u8]) -> Item {
        Item {
            key: EventKey::of("evt_1").unwrap(),
            provider_id: None,
            event_type: None,
            entity: None,
            account: None,
            mode: None,
            occurred_at: None,
            range: 0..body.len(),
            raw_digest: Digest::of(body),
            canonical_digest: source.provider.comparable(rule, body),
            digest_rule: rule,
            reading: Reading::Event,
        }
    }

    proptest! {
        // An amount that differs is a conflict, what is volatile or only spelled otherwise is not;
        // a first copy of which only the bytes compare (rule 0) forgives nothing.
        #[test]
        fn a_copy_is_a_duplicate_exactly_when_its_comparable_content_is_the_same(
            amounts in (0_u8..3, 0_u8..3), waiting in (0_u8..3, 0_u8..3),
            spaces in (any::<bool>(), any::<bool>()), rules in (0_i16..2, 0_i16..2),
        ) {
            let source = stripe();
            let body = |amount: u8, waiting: u8, spaced: bool| if spaced {
                format!("{{\"pending_webhooks\": {waiting}, \"amount\": {amount}}}")
            } else {
                format!("{{\"amount\":{amount},\"pending_webhooks\":{waiting}}}")
            };
            let first = body(amounts.0, waiting.0, spaces.0);
            let copy = body(amounts.1, waiting.1, spaces.1);
            let stored = item(&source, rules.0, first.as_bytes());
            let known = KnownKey {
                event_id: Uuid::nil(),
                raw_digest: stored.raw_digest,
                canonical_digest: stored.canonical_digest,
                digest_rule: stored.digest_rule,
                expired: false,
            };
            let given = item(&source, rules.1, copy.as_bytes());
            let same = first == copy || (rules.0 == 1 && amounts.0 == amounts.1);
            let fate = judge(&known, &given, copy.as_bytes(), source.provider.as_ref());
            prop_assert_eq!(fate, if same { Fate::Duplicate } else { Fate::Conflict });
        }
    }
}
