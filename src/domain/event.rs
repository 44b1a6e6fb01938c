//! What an event is called and what one item of a request carries.

use std::fmt;
use std::ops::Range;

use jiff::Timestamp;

use super::fingerprint::Digest;

/// The idempotency key of an event inside its source.
///
/// Text made of one or more parts joined by `:`; inside a part `%` is written `%25` and `:` is
/// written `%3A`, so that two different lists of parts never give the same key. Nothing is
/// trimmed, folded or cut: ids that differ in one byte are two events.
///
/// # Examples
///
/// ```
/// use oncehook::domain::EventKey;
///
/// let key = EventKey::of("evt_1")?.with("account", "acct_9")?.with("mode", "test")?;
/// assert_eq!(key.as_str(), "evt_1:account=acct_9:mode=test");
/// assert_eq!(EventKey::of_parts(["a:b", "c"])?.as_str(), "a%3Ab:c");
/// # Ok::<(), oncehook::domain::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventKey(String);

/// Why a provider's id cannot be a key. The event is kept as `unreadable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The id is absent or empty.
    #[error("the event carries no id")]
    Missing,
    /// The id is longer than [`EventKey::ID_BYTES_MAX`], or the key longer than
    /// [`EventKey::BYTES_MAX`].
    #[error("the event id is too long")]
    TooLong,
    /// The id holds a NUL byte, which PostgreSQL text cannot hold.
    #[error("the event id holds a NUL byte")]
    Nul,
}

impl EventKey {
    /// Longest id (one part) in bytes.
    pub const ID_BYTES_MAX: usize = 1_024;
    /// Longest whole key in bytes, escapes included.
    pub const BYTES_MAX: usize = 2_048;
    /// Prefixes of keys that oncehook makes itself; escaping keeps providers' ids apart from them.
    pub const RESERVED: [&'static str; 3] = ["sha256:", "content:", "hint:"];

    /// The key of one provider id.
    ///
    /// # Errors
    ///
    /// [`KeyError`] for an id that is empty, too long or holds NUL.
    pub fn of(id: &str) -> Result<Self, KeyError> {
        Self::of_parts([id])
    }

    /// The key of several parts. Only the first must not be empty: absent parts in the middle
    /// keep their place.
    ///
    /// # Errors
    ///
    /// As [`EventKey::of`].
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Result<Self, KeyError> {
        let mut key = String::new();
        for (index, part) in parts.into_iter().enumerate() {
            if index == 0 {
                if part.is_empty() {
                    return Err(KeyError::Missing);
                }
            } else {
                key.push(':');
            }
            push_part(&mut key, part)?;
        }
        Self::checked(key)
    }

    /// Appends `name=value` for a part that is not the default (an account, a mode).
    ///
    /// # Errors
    ///
    /// As [`EventKey::of`].
    pub fn with(mut self, name: &str, value: &str) -> Result<Self, KeyError> {
        self.0.push(':');
        self.0.push_str(name);
        self.0.push('=');
        push_part(&mut self.0, value)?;
        Self::checked(self.0)
    }

    /// The key of content that has no usable id: `sha256:<hex digest>`.
    pub fn of_digest(digest: &Digest) -> Self {
        Self(format!("sha256:{}", digest.hex()))
    }

    /// The key of an event whose sender gives it no id: `content:<hex digest>` of its comparable
    /// content. Weak: two real events with equal content count as one.
    pub fn of_content(digest: &Digest) -> Self {
        Self(format!("content:{}", digest.hex()))
    }

    /// A key read back from the database or given by a person; only its length is checked.
    ///
    /// # Errors
    ///
    /// [`KeyError`] for a text that no key can be.
    pub fn stored(key: impl Into<String>) -> Result<Self, KeyError> {
        Self::checked(key.into())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn checked(key: String) -> Result<Self, KeyError> {
        if key.is_empty() {
            return Err(KeyError::Missing);
        }
        if key.len() > Self::BYTES_MAX {
            return Err(KeyError::TooLong);
        }
        if key.contains('\0') {
            return Err(KeyError::Nul);
        }
        Ok(Self(key))
    }
}

fn push_part(key: &mut String, part: &str) -> Result<(), KeyError> {
    if part.len() > EventKey::ID_BYTES_MAX {
        return Err(KeyError::TooLong);
    }
    for character in part.chars() {
        match character {
            '%' => key.push_str("%25"),
            ':' => key.push_str("%3A"),
            '\0' => return Err(KeyError::Nul),
            other => key.push(other),
        }
    }
    Ok(())
}

impl fmt::Display for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventKey({:?})", self.0)
    }
}

/// Whether money really moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Real money.
    Live,
    /// A sandbox.
    Test,
    /// The body should say and does not. Never taken for live, never run.
    Unknown,
}

impl Mode {
    /// The word used in keys, tables and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Test => "test",
            Self::Unknown => "unknown",
        }
    }
}

/// The state an event gets when it is stored; `None` in the table means: look at its deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventState {
    /// Verified, but not in the source's format or without a usable id; kept whole.
    Unreadable,
    /// A test ping, or a mode the source does not accept.
    Ignored,
    /// No handler takes this type; `replay --missing` can run it later.
    Unrecognized,
}

impl EventState {
    /// The word used in tables and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Ignored => "ignored",
            Self::Unrecognized => "unrecognized",
        }
    }
}

/// How far an item could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// An event with a key of its own.
    Event,
    /// Verified but unreadable, with the reason for people.
    Unreadable(&'static str),
    /// Stored and acknowledged, never run (a test ping), with the reason for people.
    Ignored(&'static str),
}

/// One event as the provider's preset read it out of a verified request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Idempotency key inside the source.
    pub key: EventKey,
    /// The provider's own id, `None` if it sends none.
    pub provider_id: Option<String>,
    /// The provider's event type.
    pub event_type: Option<String>,
    /// The business object it is about.
    pub entity: Option<String>,
    /// The account it belongs to when that is not the source's own.
    pub account: Option<String>,
    /// Live or test, `None` where the provider makes no difference.
    pub mode: Option<Mode>,
    /// When it happened, by the provider's clock.
    pub occurred_at: Option<Timestamp>,
    /// Where the item's bytes lie in the request's body.
    pub range: Range<usize>,
    /// SHA-256 of the item's bytes.
    pub raw_digest: Digest,
    /// Digest of the comparable content under `digest_rule`; `None` = only raw bytes compare.
    pub canonical_digest: Option<Digest>,
    /// Number of the digest rule; 0 = raw bytes only.
    pub digest_rule: i16,
    /// How far it could be read.
    pub reading: Reading,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn f20_different_lists_of_parts_never_give_the_same_key() {
        let joined = EventKey::of_parts(["a:b", "c"]).unwrap();
        let apart = EventKey::of_parts(["a", "b:c"]).unwrap();
        let three = EventKey::of_parts(["a", "b", "c"]).unwrap();
        assert_ne!(joined, apart);
        assert_ne!(joined, three);
        assert_ne!(apart, three);
        assert_eq!(EventKey::of("100%:x").unwrap().as_str(), "100%25%3Ax");
    }

    #[test]
    fn reserved_prefixes_cannot_be_reached_by_an_id() {
        for prefix in EventKey::RESERVED {
            let key = EventKey::of(&format!("{prefix}abc")).unwrap();
            assert!(!key.as_str().starts_with(prefix), "{key}");
        }
    }

    #[test]
    fn f22_lengths_are_checked_in_bytes_and_never_cut() {
        assert!(EventKey::of(&"a".repeat(1_024)).is_ok());
        assert_eq!(EventKey::of(&"a".repeat(1_025)), Err(KeyError::TooLong));
        assert_eq!(EventKey::of(&"é".repeat(513)), Err(KeyError::TooLong));
        assert_eq!(EventKey::of(&":".repeat(1_024)), Err(KeyError::TooLong));
        assert_eq!(EventKey::of(""), Err(KeyError::Missing));
        assert_eq!(EventKey::of("a\0b"), Err(KeyError::Nul));
    }

    /// Reads the parts back out of a key.
    fn parts_of(key: &str) -> Vec<String> {
        key.split(':')
            .map(|part| part.replace("%3A", ":").replace("%25", "%"))
            .collect()
    }

    fn any_part() -> impl Strategy<Value = String> {
        prop_oneof!["[:%23A5a]{0,6}", "[^\0]{0,6}"]
    }

    proptest! {
        #[test]
        fn f20_the_parts_can_be_read_back_out_of_any_key(
            first in any_part(), more in prop::collection::vec(any_part(), 0..4)
        ) {
            let parts: Vec<&str> = std::iter::once(&first).chain(&more).map(String::as_str).collect();
            match EventKey::of_parts(parts.iter().copied()) {
                Ok(key) => {
                    prop_assert_eq!(parts_of(key.as_str()), parts);
                    let reserved = EventKey::RESERVED.iter().any(|prefix| key.as_str().starts_with(prefix));
                    prop_assert!(!reserved || !more.is_empty());
                    let account = key.clone().with("account", &first).unwrap();
                    let tail = account.as_str().strip_prefix(key.as_str()).unwrap();
                    let value = tail.strip_prefix(":account=").unwrap();
                    prop_assert_eq!(parts_of(value), vec![first.clone()]);
                }
                Err(error) => prop_assert!(first.is_empty() && error == KeyError::Missing),
            }
        }
    }
}
