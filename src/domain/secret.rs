//! Secrets that cannot be printed.

use std::fmt;

use jiff::Timestamp;

/// A secret as the provider's dashboard shows it. `Debug` prints `[redacted]`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// One labelled key of a source, already decoded by the source's preset.
#[derive(Clone)]
pub struct Secret {
    /// The operator's name for it; recorded with every request it verified.
    pub label: String,
    /// Key bytes as the preset's scheme needs them.
    pub key: Vec<u8>,
    /// From this moment on it no longer verifies anything.
    pub until: Option<Timestamp>,
}

impl Secret {
    /// Whether the secret may still verify a request received at `now`.
    pub fn alive(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("label", &self.label)
            .field("key", &"[redacted]")
            .field("until", &self.until)
            .finish()
    }
}
