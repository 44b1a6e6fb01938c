//! Events that handlers and applications emit inside a transaction: no sender, no signature, no URL.

use jiff::Timestamp;

use crate::domain::fingerprint::{Rule, canonical_json};
use crate::domain::json::Document;
use crate::domain::{Digest, EventKey, Item, Reading, Refusal, Secret, SecretText};

use super::{Provider, Request, SettingError, SignedRequest, Verified};

/// Name in the configuration, and recipe of its keys: `oncehook.emit` looks for it.
pub(crate) const NAME: &str = "internal";

/// The only digest rule: canonical JSON, nothing is volatile.
const RULE: i16 = 1;

/// The preset of internal sources.
#[derive(Debug)]
pub(crate) struct Internal;

/// What was emitted, as far as reading is concerned.
#[derive(Debug)]
pub(crate) struct Fields {
    pub(crate) key: String,
    pub(crate) event_type: Option<String>,
    pub(crate) entity: Option<String>,
    pub(crate) occurred_at: Option<Timestamp>,
}

/// The item of an emitted event, whose body is the whole request.
pub(crate) fn item(fields: Fields, body: &[u8]) -> Item {
    let raw_digest = Digest::of(body);
    let canonical_digest = comparable(body);
    let (key, reading) = match EventKey::of(&fields.key) {
        Ok(key) => (key, Reading::Event),
        Err(_) => (
            EventKey::of_digest(&raw_digest),
            Reading::Unreadable("the key is none"),
        ),
    };
    Item {
        key,
        provider_id: Some(fields.key),
        event_type: fields.event_type,
        entity: fields.entity,
        account: None,
        mode: None,
        occurred_at: fields.occurred_at,
        range: 0..body.len(),
        raw_digest,
        digest_rule: if canonical_digest.is_some() {
            RULE
        } else {
            Rule::RAW
        },
        canonical_digest,
        reading,
    }
}

fn comparable(body: &[u8]) -> Option<Digest> {
    let document = Document::parse(body).ok()?;
    canonical_json(document.root(), &[])
}

impl Provider for Internal {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self, _text: &SecretText, _strict: bool) -> Result<Vec<u8>, SettingError> {
        Err(SettingError(
            "an internal source has no secrets: its events are emitted inside the database"
                .to_owned(),
        ))
    }

    fn verify(
        &self,
        _request: &Request<'_>,
        _secrets: &[Secret],
        _now: Timestamp,
    ) -> Result<Verified, Refusal> {
        Err(Refusal::UnknownSource)
    }

    fn unwrap(&self, _request: &Request<'_>, verified: &Verified) -> Vec<Item> {
        verified.items.clone()
    }

    fn comparable(&self, rule: i16, item: &[u8]) -> Option<Digest> {
        (rule == RULE).then(|| comparable(item)).flatten()
    }

    fn recipe(&self) -> String {
        NAME.to_owned()
    }

    fn receives_requests(&self) -> bool {
        false
    }

    fn sign(
        &self,
        _payload: &[u8],
        _event_type: &str,
        _id: &str,
        _secret: &SecretText,
        _now: Timestamp,
    ) -> Result<SignedRequest, SettingError> {
        Err(SettingError(
            "an internal source takes no requests: its events are made by oncehook.emit".to_owned(),
        ))
    }

    fn sample(&self, _event_type: &str, _unique: &str, _now: Timestamp) -> Option<Vec<u8>> {
        None
    }

    fn sample_types(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn stored_headers(&self) -> Vec<String> {
        Vec::new()
    }
}
