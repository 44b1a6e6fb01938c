//! A provider made for these tests: HMAC over the body, an object or an array of them.

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use oncehook::domain::{Digest, EventKey, Item, Reading, Refusal, Secret, SecretText};
use oncehook::provider::{Provider, Reply, Request, SettingError, SignedRequest, Verified};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::Sha256;

/// Key of every source here.
pub(super) const SECRET: &[u8] = b"0123456789abcdef";

/// What goes into `X-Signature`.
pub(super) fn signature(body: &[u8]) -> String {
    hex::encode(mac(body).finalize().into_bytes())
}

fn mac(body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).unwrap();
    mac.update(body);
    mac
}

#[derive(Debug, Default)]
pub(super) struct Plain {
    /// Acknowledges with `[accepted]` and refuses with 498.
    pub(super) dialect: bool,
}

#[derive(Deserialize)]
struct Event {
    id: Option<String>,
    r#type: Option<String>,
    /// Stands for an item whose own signature does not hold.
    #[serde(default)]
    altered: bool,
}

/// The items' text, as it lies in the body.
fn parts(body: &[u8]) -> Vec<&RawValue> {
    serde_json::from_slice::<Vec<&RawValue>>(body)
        .or_else(|_| serde_json::from_slice::<&RawValue>(body).map(|one| vec![one]))
        .unwrap_or_default()
}

fn read(part: &[u8]) -> Option<Event> {
    serde_json::from_slice(part).ok()
}

fn altered(body: &[u8]) -> Vec<(usize, Refusal)> {
    parts(body)
        .iter()
        .enumerate()
        .filter(|(_, part)| read(part.get().as_bytes()).is_some_and(|event| event.altered))
        .map(|(index, _)| (index, Refusal::BadSignature))
        .collect()
}

fn item(body: &[u8], part: &[u8]) -> Item {
    let start = part.as_ptr() as usize - body.as_ptr() as usize;
    let raw_digest = Digest::of(part);
    let event = read(part);
    let id = event.as_ref().and_then(|event| event.id.as_deref());
    let key = id.map(EventKey::of);
    let reading = match &key {
        Some(Ok(_)) => Reading::Event,
        Some(Err(_)) => Reading::Unreadable("the id cannot be a key"),
        None => Reading::Unreadable("no id"),
    };
    Item {
        key: key
            .and_then(Result::ok)
            .unwrap_or_else(|| EventKey::of_digest(&raw_digest)),
        provider_id: id.map(str::to_owned),
        event_type: event.and_then(|event| event.r#type),
        entity: None,
        account: None,
        mode: None,
        occurred_at: None,
        range: start..start + part.len(),
        raw_digest,
        canonical_digest: None,
        digest_rule: 0,
        reading,
    }
}

impl Provider for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn key(&self, text: &SecretText, _: bool) -> Result<Vec<u8>, SettingError> {
        Ok(text.expose().into())
    }

    fn verify(
        &self,
        request: &Request<'_>,
        secrets: &[Secret],
        _: Timestamp,
    ) -> Result<Verified, Refusal> {
        let mut refusal = Refusal::MissingSignature;
        for value in request.headers.all("X-Signature") {
            match hex::decode(value) {
                Ok(sent) if sent.len() == 32 => refusal = Refusal::BadSignature,
                _ => {
                    refusal = Refusal::MalformedSignature;
                    continue;
                }
            }
            let sent = hex::decode(value).unwrap();
            if mac(request.body).verify_slice(&sent).is_ok() {
                return Ok(Verified {
                    secret_label: secrets[0].label.clone(),
                    refused_items: altered(request.body),
                    items: Vec::new(),
                });
            }
        }
        Err(refusal)
    }

    fn unwrap(&self, request: &Request<'_>, verified: &Verified) -> Vec<Item> {
        let refused = |index| verified.refused_items.iter().any(|(at, _)| *at == index);
        let parts = parts(request.body);
        if parts.is_empty() && request.body.trim_ascii() != b"[]" {
            return vec![item(request.body, request.body)];
        }
        parts
            .iter()
            .enumerate()
            .filter(|(index, _)| !refused(*index))
            .map(|(_, part)| item(request.body, part.get().as_bytes()))
            .collect()
    }

    fn comparable(&self, _: i16, _: &[u8]) -> Option<Digest> {
        None
    }

    fn recipe(&self) -> String {
        "json:/id".into()
    }

    fn acknowledge(&self) -> Option<Reply> {
        self.dialect.then(|| Reply {
            status: 200,
            content_type: "text/plain",
            body: b"[accepted]".to_vec(),
        })
    }

    fn refusal_status(&self, refusal: Refusal) -> u16 {
        if self.dialect { 498 } else { refusal.status() }
    }

    fn sign(
        &self,
        payload: &[u8],
        _: &str,
        _: &str,
        _: &SecretText,
        _: Timestamp,
    ) -> Result<SignedRequest, SettingError> {
        Ok(SignedRequest {
            headers: vec![("X-Signature".into(), signature(payload))],
            body: payload.to_vec(),
        })
    }

    fn sample(&self, _: &str, _: &str, _: Timestamp) -> Option<Vec<u8>> {
        None
    }

    fn sample_types(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn stored_headers(&self) -> Vec<String> {
        vec!["x-signature".into(), "authorization".into()]
    }
}
