//! What a source may set for its preset.

use std::time::Duration;

use serde::Deserialize;

use super::mac::{Encoding, Hash};
use super::scheme::Unit;

/// Options of one source. A preset that does not know one of them refuses it by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Window of the signed time, both ways and inclusive.
    pub tolerance: Option<Duration>,
    /// One of the sender's dialects, when it has several.
    pub dialect: Option<String>,
    /// The address as registered with a sender that signs it.
    pub public_url: Option<String>,
    /// The scheme of the `hmac` preset.
    pub hmac: Option<HmacOptions>,
}

/// `[source.hmac]`: any HMAC scheme with one signature in one header.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HmacOptions {
    /// Header that carries the signature.
    pub header: String,
    /// Template of the signed bytes over `{body}`, `{timestamp}`, `{id}`, `{url}` and
    /// `{header:NAME}`. An id or header that holds the text beside it is refused: `{id}.{body}`
    /// takes no id with a `.`, since it could be cut in two ways.
    #[serde(default = "body")]
    pub signed: String,
    /// Header that carries the signed time.
    pub timestamp_header: Option<String>,
    /// Unit of the signed time: `s` or `ms`.
    #[serde(default)]
    pub timestamp_unit: Unit,
    /// `sha1`, `sha256`, `sha384` or `sha512`.
    #[serde(default)]
    pub hash: Hash,
    /// `hex` or `base64`.
    #[serde(default)]
    pub encoding: Encoding,
    /// Text before the signature.
    #[serde(default)]
    pub prefix: String,
    /// `json:/pointer` or `header:NAME`; a list makes a key of several parts.
    pub event_id: Option<EventId>,
    /// Where the type stands, as for `event_id`.
    pub event_type: Option<String>,
    /// Where the id of the business object stands, as for `event_id`.
    pub entity: Option<String>,
}

fn body() -> String {
    "{body}".to_owned()
}

/// One field, or several that make the key together.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum EventId {
    /// One field.
    One(String),
    /// Several, in the order of the key's parts.
    Several(Vec<String>),
}
