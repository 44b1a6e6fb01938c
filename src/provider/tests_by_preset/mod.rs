//! Edges that no published vector shows, for every preset.

mod identity;
mod options;
mod signature;
mod simulate;

use std::sync::Arc;
use std::time::Duration;

use super::{
    EventId, Headers, HmacOptions, NAMES, Options, Provider, Request, SettingError, Unit, build,
    list,
};
use crate::domain::{Digest, Item, Mode, Reading, Refusal, Secret, SecretText};
use jiff::{SignedDuration, Timestamp};

const STRIPE: &str = "whsec_5f8Zc0mWq7Yb2nTr9LxV";
const PUBLIC: &str = "whpk_ZlN4eg7dSSqi0moX9hQUk3orrOouK3QVQSlJa248c/g=";

fn now() -> Timestamp {
    Timestamp::from_second(1_764_579_600).unwrap()
}

fn after(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn preset(name: &str) -> Arc<dyn Provider> {
    build(name, &Options::default()).unwrap()
}

fn shop() -> HmacOptions {
    HmacOptions {
        header: "X-Shop-Signature".into(),
        signed: "{timestamp}.{body}".into(),
        timestamp_header: Some("X-Shop-Time".into()),
        prefix: "v1=".into(),
        event_id: Some(EventId::One("json:/id".into())),
        event_type: Some("json:/type".into()),
        entity: Some("json:/data/order_id".into()),
        ..HmacOptions::default()
    }
}

fn hmac(scheme: HmacOptions) -> Result<Arc<dyn Provider>, SettingError> {
    let options = Options {
        hmac: Some(scheme),
        ..Options::default()
    };
    build("hmac", &options)
}

/// Every preset with a secret that signs and the text that verifies.
fn all() -> Vec<(Arc<dyn Provider>, &'static str, &'static str)> {
    let dialect = |name, dialect: &str| {
        let options = Options {
            dialect: Some(dialect.into()),
            ..Options::default()
        };
        build(name, &options).unwrap()
    };
    let hex = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";
    let whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    // The seed of the published key pair of the specification's library.
    let private = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    let weak = hmac(HmacOptions {
        header: "X-Sig".into(),
        signed: "{header:X-Nonce}{body}".into(),
        ..HmacOptions::default()
    });
    vec![
        (preset("stripe"), STRIPE, STRIPE),
        (preset("adyen"), hex, hex),
        (dialect("adyen", "platform"), hex, hex),
        (preset("standard-webhooks"), whsec, whsec),
        (
            dialect("standard-webhooks", "asymmetric"),
            private,
            public_of(private),
        ),
        (
            preset("github"),
            "It's a long secret of ours",
            "It's a long secret of ours",
        ),
        (
            hmac(shop()).unwrap(),
            "shop-secret-7f3a9c",
            "shop-secret-7f3a9c",
        ),
        (weak.unwrap(), "shop-secret-7f3a9c", "shop-secret-7f3a9c"),
    ]
}

fn public_of(private: &str) -> &'static str {
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD;
    let seed = base64.decode(&private["whsk_".len()..]).unwrap();
    let key = ed25519_dalek::SigningKey::from_bytes(seed[..32].try_into().unwrap());
    let public = base64.encode(key.verifying_key().as_bytes());
    Box::leak(format!("whpk_{public}").into_boxed_str())
}

fn secret(provider: &dyn Provider, label: &str, text: &str) -> Secret {
    Secret {
        label: label.into(),
        key: provider.key(&SecretText::new(text), true).unwrap(),
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

fn stripe_mac(time: &str, body: &[u8]) -> String {
    let parts = [time.as_bytes(), b".", body];
    hex::encode(crate::provider::mac::Hash::Sha256.hmac(STRIPE.as_bytes(), &parts))
}

fn stripe_verify(header: &str, body: &[u8], at: Timestamp) -> Result<String, Refusal> {
    let stripe = preset("stripe");
    let headers: Headers = [("stripe-signature", header)].into_iter().collect();
    let secrets = [secret(stripe.as_ref(), "a", STRIPE)];
    stripe
        .verify(&request(&headers, body), &secrets, at)
        .map(|verified| verified.secret_label)
}

/// Signs a body as Stripe does and reads it.
fn stripe_read(body: &str) -> Item {
    let stripe = preset("stripe");
    let header = format!(
        "t={},v1={}",
        now().as_second(),
        stripe_mac("1764579600", body.as_bytes())
    );
    let headers: Headers = [("Stripe-Signature", header)].into_iter().collect();
    let request = request(&headers, body.as_bytes());
    let secrets = [secret(stripe.as_ref(), "a", STRIPE)];
    let verified = stripe.verify(&request, &secrets, now()).unwrap();
    stripe.unwrap(&request, &verified).pop().unwrap()
}
