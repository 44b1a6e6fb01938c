//! The stable id of an outside effect.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::EventKey;

/// The id sent with any outside effect of (event, handler, generation).
///
/// Derived, never drawn at random: an event that is stored again after a lost database suffix has
/// a new event id and the same effect key, so a receiver that honours it applies the effect once.
/// `source` and `handler` are the names under which they were first registered; renaming them
/// does not change the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EffectKey(String);

impl EffectKey {
    /// Derives the key.
    pub fn derive(source: &str, key: &EventKey, handler: &str, generation: i16) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"oncehook effect key 1");
        for part in [
            source.as_bytes(),
            key.as_str().as_bytes(),
            handler.as_bytes(),
        ] {
            // Lengths keep the parts apart.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update(generation.to_be_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        Self(format!(
            "ohk_{}",
            hex::encode(digest.get(..Self::BYTES).unwrap_or_default())
        ))
    }

    /// Reads a key as a receiver gives it back; `None` for any text that is none.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("ohk_")?;
        let hex = digits
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (digits.len() == 2 * Self::BYTES && hex).then(|| Self(text.to_owned()))
    }

    /// What the digits stand for.
    pub fn bytes(&self) -> Vec<u8> {
        let digits = self.0.strip_prefix("ohk_").unwrap_or_default();
        hex::decode(digits).unwrap_or_default()
    }

    const BYTES: usize = 20;

    /// The key as text: `ohk_` and 40 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EffectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_inputs_equal_key_and_every_part_counts() {
        let key = EventKey::of("evt_1").unwrap();
        let base = EffectKey::derive("stripe", &key, "ledger", 0);
        assert_eq!(base, EffectKey::derive("stripe", &key, "ledger", 0));
        assert_ne!(base, EffectKey::derive("stripe", &key, "ledger", 1));
        assert_ne!(base, EffectKey::derive("stripe2", &key, "ledger", 0));
        assert_ne!(base, EffectKey::derive("stripe", &key, "ledge", 0));
        assert_ne!(
            EffectKey::derive("ab", &key, "c", 0),
            EffectKey::derive("a", &key, "bc", 0)
        );
    }

    #[test]
    fn the_derivation_never_changes_because_receivers_remember_these() {
        let key = EventKey::of("evt_1").unwrap();
        assert_eq!(
            EffectKey::derive("stripe", &key, "ledger", 0).as_str(),
            "ohk_9c10450054f2d0cdfb8fbc4a1f852d2954e815d4"
        );
    }

    #[test]
    fn a_key_that_comes_back_is_the_one_that_was_sent() {
        let key = EffectKey::derive("stripe", &EventKey::of("evt_1").unwrap(), "ledger", 0);
        assert_eq!(EffectKey::parse(key.as_str()), Some(key.clone()));
        assert_eq!(hex::encode(key.bytes()), key.as_str()[4..]);
    }

    type Parts = (String, String, String, i16);

    fn parts() -> impl Strategy<Value = Parts> {
        ("[ab:]{1,3}", "[ab:]{1,3}", "[ab:]{1,3}", -1_i16..2)
    }

    fn derived((source, key, handler, generation): &Parts) -> EffectKey {
        EffectKey::derive(
            source,
            &EventKey::stored(key.as_str()).unwrap(),
            handler,
            *generation,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn keys_are_equal_exactly_when_all_parts_are(one in parts(), other in parts()) {
            prop_assert_eq!(derived(&one) == derived(&other), one == other);
            prop_assert_eq!(derived(&one), derived(&one.clone()));
        }
    }
}
