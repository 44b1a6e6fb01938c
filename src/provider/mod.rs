//! One sender's dialect: raw bytes in, verified items out.
//!
//! A [`Provider`] is a preset bound to its options. It never touches the database, the network or
//! the machine's clock. Adding one whose signature is a MAC over a template is a table entry in
//! `presets.rs`; anything else is a file of its own.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `scheme`, `template`, `mac`, `key` | verifying and signing by a declared scheme |
//! | `reading`, `form` | key, type, entity and digests by declared rules |
//! | `declared`, `presets` | both halves as one preset, and the table of them |
//! | `hmac` | a table entry made of the source's own options |
//! | `adyen` | the one that needs code: signatures inside the items |
//! | `internal` | events emitted in the database: no sender |
//! | `operation` | intents under keys that clients of our own API chose |
//! | `compare` | the only comparison of signatures |

mod adyen;
mod compare;
mod declared;
#[cfg(test)]
mod fixtures;
mod form;
mod headers;
mod hmac;
pub(crate) mod internal;
mod key;
mod mac;
pub(crate) mod operation;
mod options;
mod presets;
mod reading;
mod registry;
mod samples;
mod scheme;
mod source;
mod template;
#[cfg(test)]
mod tests_by_fault;
#[cfg(test)]
mod tests_by_preset;

pub use headers::Headers;
pub(crate) use headers::NEVER_STORED;
pub use mac::{Encoding, Hash};
pub use options::{EventId, HmacOptions, Options};
pub use reading::NAME_BYTES_MAX;
pub use registry::{NAMES, PresetInfo, build, list};
pub use scheme::Unit;
pub use source::{OnConflict, Source};

use jiff::Timestamp;

use crate::domain::{Digest, Item, Refusal, Secret, SecretText};

/// One HTTP request as received.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Method in upper case.
    pub method: &'a str,
    /// Path and query as on the request line.
    pub target: &'a str,
    /// Header fields in order, with case and repeats.
    pub headers: &'a Headers,
    /// The exact bytes of the body.
    pub body: &'a [u8],
}

/// Proof that a living secret signed the request; the only door to the write path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Label of the secret that matched.
    pub secret_label: String,
    /// Items that failed their own signature (index in the body's order, reason). Empty for
    /// providers that sign the whole body.
    pub refused_items: Vec<(usize, Refusal)>,
    /// Items that were read on the way, by presets that must read the body to verify it; each
    /// body is parsed once. Others leave it empty and read in [`Provider::unwrap`].
    pub items: Vec<Item>,
}

/// An answer in the sender's dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// 200 with a short text.
    fn text(body: &str) -> Self {
        Self {
            status: 200,
            content_type: "text/plain; charset=utf-8",
            body: body.as_bytes().to_vec(),
        }
    }
}

/// A correctly signed request, made by [`Provider::sign`].
#[derive(Debug, Clone)]
pub struct SignedRequest {
    /// Header fields to send.
    pub headers: Vec<(String, String)>,
    /// The body to send (for senders that sign inside the body it differs from the payload).
    pub body: Vec<u8>,
}

/// Why a secret or a source's options cannot be used. Never holds the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);

/// One sender's dialect, bound to the options of one source.
pub trait Provider: Send + Sync + std::fmt::Debug {
    /// Name of the preset as written in the configuration.
    fn name(&self) -> &'static str;

    /// Decodes a secret from the form the provider's dashboard shows.
    ///
    /// Strict: what does not decode, or decodes to fewer than 16 bytes, is refused when `strict`
    /// is set (it is off for the offline tools only).
    ///
    /// # Errors
    ///
    /// [`SettingError`] with a sentence that says what the text looks like, never its value.
    fn key(&self, text: &SecretText, strict: bool) -> Result<Vec<u8>, SettingError>;

    /// Checks the request over its exact bytes against every living secret.
    ///
    /// # Errors
    ///
    /// The [`Refusal`] that names the first thing that did not hold.
    fn verify(
        &self,
        request: &Request<'_>,
        secrets: &[Secret],
        now: Timestamp,
    ) -> Result<Verified, Refusal>;

    /// Reads the items out of a verified request, without those in
    /// [`Verified::refused_items`]. Never fails: what cannot be read is one unreadable item.
    fn unwrap(&self, request: &Request<'_>, verified: &Verified) -> Vec<Item>;

    /// Digest of an item's comparable content under a numbered rule; `None` where only raw bytes
    /// compare or the rule is not known.
    fn comparable(&self, rule: i16, item: &[u8]) -> Option<Digest>;

    /// The id recipe in words that never change while keys made by it are stored. A source whose
    /// recipe differs from the stored one is refused at start.
    fn recipe(&self) -> String;

    /// Whether its events come by HTTP. Those of an internal source are emitted in the database.
    fn receives_requests(&self) -> bool {
        true
    }

    /// The rule that digests are made under now, where it is one of the source's own.
    fn present_rule(&self) -> i16 {
        0
    }

    /// Whether [`Provider::comparable`] knows the rule. One of an operation may be newer than this node.
    fn knows_rule(&self, _rule: i16) -> bool {
        true
    }

    /// How long a key names its first event, from when that was first seen; `None`: for ever.
    fn keep_key(&self) -> Option<std::time::Duration> {
        None
    }

    /// Whether its events tell live from test, so that a source can accept one of them only.
    fn has_modes(&self) -> bool {
        false
    }

    /// What the operator should know about this source's settings, for `check` and the start-up
    /// log: ids that no signature covers, events without an id.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The acknowledgement this sender wants, or `None` for oncehook's own JSON.
    fn acknowledge(&self) -> Option<Reply> {
        None
    }

    /// HTTP status for a refused signature.
    fn refusal_status(&self, refusal: Refusal) -> u16 {
        refusal.status()
    }

    /// Signs a payload as the sender would. `path` is the webhook URL's path, `id` the delivery
    /// id for presets that carry it in a header, `event_type` likewise.
    ///
    /// # Errors
    ///
    /// [`SettingError`] when the secret cannot sign (a public key).
    fn sign(
        &self,
        payload: &[u8],
        event_type: &str,
        id: &str,
        secret: &SecretText,
        now: Timestamp,
    ) -> Result<SignedRequest, SettingError>;

    /// A sample payload of the type with fresh ids, or `None` for a type the simulator has no
    /// sample of. `unique` is a random token to make ids from.
    fn sample(&self, event_type: &str, unique: &str, now: Timestamp) -> Option<Vec<u8>>;

    /// Event types [`Provider::sample`] knows, most used first.
    fn sample_types(&self) -> Vec<&'static str>;

    /// Further header names to store with the request (lower case), beside the common ones.
    /// Never one whose value *is* a secret.
    fn stored_headers(&self) -> Vec<String>;
}
