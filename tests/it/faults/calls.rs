//! Requests as the senders make them, ready to be spoilt.

use std::net::SocketAddr;

use oncehook::provider::{EventId, HmacOptions, Options, Source};
use serde_json::{Value, json};

use crate::support::inbox;
use crate::support::raw::{RawHttp, RawResponse};
use crate::support::signer::{self, STRIPE_SECRET};

pub(super) const STANDARD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(super) const ADYEN_SECRET: &str =
    "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";
pub(super) const GITHUB_SECRET: &str = "It's a Secret to Everybody";
pub(super) const SHOP_SECRET: &str = "the shop signs with 30 letters";

/// A source of every preset, each under its preset's name, `hmac` as `shop`.
pub(super) fn sources() -> Vec<Source> {
    let plain = Options::default();
    vec![
        inbox::stripe_source(),
        inbox::source("standard", "standard-webhooks", STANDARD_SECRET, &plain),
        inbox::source("adyen", "adyen", ADYEN_SECRET, &plain),
        inbox::source("github", "github", GITHUB_SECRET, &plain),
        shop_source(),
    ]
}

/// The `hmac` source: hex over `{timestamp}.{body}`, the id in the body.
pub(super) fn shop_source() -> Source {
    inbox::source("shop", "hmac", SHOP_SECRET, &hmac(shop_scheme()))
}

/// Options of an `hmac` source.
pub(super) fn hmac(scheme: HmacOptions) -> Options {
    Options {
        hmac: Some(scheme),
        ..Options::default()
    }
}

pub(super) fn shop_scheme() -> HmacOptions {
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

/// The same source as configuration.
pub(super) const SHOP_TOML: &str = r#"
[source.hmac]
header = "X-Shop-Signature"
signed = "{timestamp}.{body}"
timestamp_header = "X-Shop-Time"
prefix = "v1="
event_id = "json:/id"
event_type = "json:/type"
entity = "json:/data/order_id"
"#;

/// One request, signed or not.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) path: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl Call {
    pub(super) fn new(source: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            path: format!("/webhooks/{source}"),
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// Sets a header, in place of one of the same name.
    pub(super) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers
            .retain(|(set, _)| !set.eq_ignore_ascii_case(name));
        self.headers
            .push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers
            .retain(|(set, _)| !set.eq_ignore_ascii_case(name));
        self
    }

    /// The same headers over another body.
    pub(super) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// To another path.
    pub(super) fn at(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    pub(super) fn value(&self, name: &str) -> String {
        let found = self.headers.iter().find(|(set, _)| set == name);
        String::from_utf8(found.unwrap().1.clone()).unwrap()
    }

    /// As it goes over the wire.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("POST {} HTTP/1.1\r\nHost: x\r\n", self.path).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", self.body.len()).as_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Sends it on a connection of its own.
    pub(super) async fn to(&self, address: SocketAddr) -> RawResponse {
        let mut raw = RawHttp::connect(address).await;
        raw.send(self.bytes()).await;
        raw.read_response().await.expect("no answer")
    }
}

/// Signed by Stripe now.
pub(super) fn stripe(body: impl Into<Vec<u8>>) -> Call {
    stripe_with(STRIPE_SECRET, body)
}

pub(super) fn stripe_with(secret: &str, body: impl Into<Vec<u8>>) -> Call {
    let body = body.into();
    let signature = signer::stripe(secret, signer::now_s(), &body);
    Call::new("stripe", body).header("Stripe-Signature", signature)
}

/// A live Stripe event.
pub(super) fn stripe_event(id: &str) -> Call {
    stripe(inbox::event(id, "charge.succeeded", json!({"id": "ch_1", "amount": 100})).to_string())
}

/// Signed as Standard Webhooks now.
pub(super) fn standard(id: &str, body: impl Into<Vec<u8>>) -> Call {
    let body = body.into();
    let headers = signer::standard_webhooks(STANDARD_SECRET, id, signer::now_s(), &body);
    headers
        .into_iter()
        .fold(Call::new("standard", body), |call, (name, value)| {
            call.header(name, value)
        })
}

/// Signed by GitHub.
pub(super) fn github(id: &str, event_type: &str, body: impl Into<Vec<u8>>) -> Call {
    let body = body.into();
    let signature = signer::github(GITHUB_SECRET, &body);
    Call::new("github", body)
        .header("X-GitHub-Delivery", id)
        .header("X-GitHub-Event", event_type)
        .header("X-Hub-Signature-256", signature)
}

/// Signed by the shop now.
pub(super) fn shop(body: impl Into<Vec<u8>>) -> Call {
    shop_at(&signer::now_s().to_string(), body)
}

/// Signed by the shop over any text of a time.
pub(super) fn shop_at(time: &str, body: impl Into<Vec<u8>>) -> Call {
    let body = body.into();
    let parts = [time.as_bytes(), b".", body.as_slice()];
    let mac = signer::hmac_sha256(SHOP_SECRET.as_bytes(), &parts);
    Call::new("shop", body)
        .header("X-Shop-Time", time)
        .header("X-Shop-Signature", format!("v1={}", hex::encode(mac)))
}

/// One signed Adyen item.
pub(super) fn adyen_item(psp: &str, reference: &str, amount: i64) -> Value {
    let value = amount.to_string();
    let fields = [
        psp,
        "",
        "TestMerchant",
        reference,
        &value,
        "EUR",
        "AUTHORISATION",
        "true",
    ];
    json!({ "NotificationRequestItem": {
        "additionalData": { "hmacSignature": signer::adyen(ADYEN_SECRET, fields) },
        "amount": { "value": amount, "currency": "EUR" },
        "pspReference": psp, "merchantReference": reference,
        "merchantAccountCode": "TestMerchant", "eventCode": "AUTHORISATION",
        "eventDate": "2026-12-02T10:00:00+01:00", "success": "true",
    } })
}

/// An Adyen notification.
pub(super) fn adyen(items: &[Value]) -> Call {
    let body = json!({ "live": "true", "notificationItems": items });
    Call::new("adyen", body.to_string())
}
