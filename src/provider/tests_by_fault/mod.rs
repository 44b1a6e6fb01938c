//! Tables of cases over the presets, and what they share: a signed request in a few words.
//!
//! MACs are made by `Hash::hmac`, whose own tests are published vectors; what senders published
//! runs in `super::fixtures`.

mod adyen;
mod properties;
mod reading;
mod secrets;
mod signatures;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;

use super::mac::Hash;
use super::{
    EventId, Headers, HmacOptions, Options, Provider, Request, SignedRequest, Verified, build,
};
use crate::domain::{Item, Refusal, Secret, SecretText};

const NOW: i64 = 1_700_000_000;
const STRIPE: &str = "whsec_5f8Zc0mWq7Yb2nTr9LxV";
const STANDARD_WEBHOOKS: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ADYEN: &str = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";
const CHOSEN: &str = "correct horse battery";
/// Any 32 bytes are a private key; the public one belongs to it.
const SEED: [u8; 32] = [7; 32];

type Bound = Arc<dyn Provider>;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn preset(name: &str) -> Bound {
    build(name, &Options::default()).unwrap()
}

fn dialect(name: &str, dialect: &str) -> Bound {
    let options = Options {
        dialect: Some(dialect.to_owned()),
        ..Options::default()
    };
    build(name, &options).unwrap()
}

/// The configurable preset with the id in the body; `change` says what is different.
fn hmac(change: impl FnOnce(&mut HmacOptions)) -> Result<Bound, super::SettingError> {
    let mut options = HmacOptions {
        header: "X-Signature".to_owned(),
        signed: "{body}".to_owned(),
        event_id: Some(EventId::One("json:/id".to_owned())),
        event_type: Some("json:/type".to_owned()),
        ..HmacOptions::default()
    };
    change(&mut options);
    let public_url = options
        .signed
        .contains("{url}")
        .then(|| "https://hooks.example.com/webhooks/shop?a=1".to_owned());
    build(
        "hmac",
        &Options {
            hmac: Some(options),
            public_url,
            ..Options::default()
        },
    )
}

fn several(fields: &[&str]) -> EventId {
    EventId::Several(fields.iter().map(|field| (*field).to_owned()).collect())
}

/// Every preset and dialect with the text that signs and the text that verifies.
fn every() -> Vec<(Bound, String, String)> {
    let same = |provider: Bound, text: &str| (provider, text.to_owned(), text.to_owned());
    let public = ed25519_dalek::SigningKey::from_bytes(&SEED).verifying_key();
    let timed = |o: &mut HmacOptions, signed: &str| {
        o.signed = signed.to_owned();
        o.timestamp_header = Some("X-Time".to_owned());
    };
    vec![
        same(preset("stripe"), STRIPE),
        same(preset("standard-webhooks"), STANDARD_WEBHOOKS),
        (
            dialect("standard-webhooks", "asymmetric"),
            format!("whsk_{}", STANDARD.encode(SEED)),
            format!("whpk_{}", STANDARD.encode(public.as_bytes())),
        ),
        same(preset("adyen"), ADYEN),
        same(dialect("adyen", "platform"), ADYEN),
        same(preset("github"), CHOSEN),
        same(hmac(|_| ()).unwrap(), CHOSEN),
        same(hmac(|o| timed(o, "v0:{timestamp}:{body}")).unwrap(), CHOSEN),
        same(
            hmac(|o| {
                timed(o, "{id}{timestamp}.{header:X-Shop}\n{url}{body}");
                o.timestamp_unit = super::Unit::Milliseconds;
                o.hash = Hash::Sha512;
                o.encoding = super::Encoding::Base64;
                o.prefix = "sig=".to_owned();
                o.event_id = Some(several(&["header:X-Id", "json:/data/id"]));
                o.event_type = Some("header:X-Topic".to_owned());
                o.entity = Some("json:/data/id".to_owned());
            })
            .unwrap(),
            CHOSEN,
        ),
        same(hmac(|o| o.event_id = None).unwrap(), CHOSEN),
    ]
}

fn key(provider: &Bound, text: &str) -> Vec<u8> {
    provider.key(&SecretText::new(text), false).unwrap()
}

fn secret(provider: &Bound, text: &str) -> Secret {
    Secret {
        label: "main".to_owned(),
        key: key(provider, text),
        until: None,
    }
}

fn request<'a>(headers: &'a Headers, body: &'a [u8]) -> Request<'a> {
    Request {
        method: "POST",
        target: "/webhooks/x",
        headers,
        body,
    }
}

/// Verifies by one secret at `NOW`.
fn verify(
    provider: &Bound,
    text: &str,
    headers: &Headers,
    body: &[u8],
) -> Result<Verified, Refusal> {
    provider.verify(&request(headers, body), &[secret(provider, text)], at(NOW))
}

/// Signs at `NOW` as the sender does; the id goes into the header, where there is one.
fn sign(provider: &Bound, text: &str, id: &str, body: &[u8]) -> (Headers, Vec<u8>) {
    let SignedRequest { headers, body } = provider
        .sign(body, "order.paid", id, &SecretText::new(text), at(NOW))
        .unwrap();
    (headers.into_iter().collect(), body)
}

/// Signs, verifies and reads a body that is one event.
fn item(provider: &Bound, text: &str, id: &str, body: &[u8]) -> Item {
    let (headers, body) = sign(provider, text, id, body);
    let verified = verify(provider, text, &headers, &body).unwrap();
    let mut items = provider.unwrap(&request(&headers, &body), &verified);
    assert_eq!(items.len(), 1);
    items.remove(0)
}

/// As [`item`], for Stripe.
fn stripe(body: impl AsRef<[u8]>) -> Item {
    item(&preset("stripe"), STRIPE, "", body.as_ref())
}

fn hex_mac(key: &[u8], signed: &[&[u8]]) -> String {
    hex::encode(Hash::Sha256.hmac(key, signed))
}

fn headers<const N: usize>(fields: [(&str, &str); N]) -> Headers {
    fields.into_iter().collect()
}
