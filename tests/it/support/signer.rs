//! Signatures as the senders make them, written apart from `src/provider` so that one mistake
//! cannot hide in both.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The secret that [`super::AppBuilder::stripe`] gives its source.
pub(crate) const STRIPE_SECRET: &str = "whsec_k3Jq9vXw2LmT8rZp5NcB7yHdF4sG6aQe";

/// Seconds since 1970.
pub(crate) fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs().try_into().unwrap()
}

/// HMAC-SHA256.
pub(crate) fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// The value of `Stripe-Signature` at a time.
pub(crate) fn stripe(secret: &str, at_s: i64, body: &[u8]) -> String {
    let time = at_s.to_string();
    let mac = hmac_sha256(secret.as_bytes(), &[time.as_bytes(), b".", body]);
    format!("t={time},v1={}", hex::encode(mac))
}

/// The headers of Standard Webhooks (`v1`); the secret is `whsec_` and base64.
pub(crate) fn standard_webhooks(
    secret: &str,
    id: &str,
    at_s: i64,
    body: &[u8],
) -> [(&'static str, String); 3] {
    let key = STANDARD
        .decode(secret.strip_prefix("whsec_").unwrap_or(secret))
        .unwrap();
    let time = at_s.to_string();
    let mac = hmac_sha256(&key, &[id.as_bytes(), b".", time.as_bytes(), b".", body]);
    [
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", time),
        ("webhook-signature", format!("v1,{}", STANDARD.encode(mac))),
    ]
}

/// The value of `X-Hub-Signature-256`.
pub(crate) fn github(secret: &str, body: &[u8]) -> String {
    format!(
        "sha256={}",
        hex::encode(hmac_sha256(secret.as_bytes(), &[body]))
    )
}

/// `hmacSignature` of one Adyen item over its eight signed fields.
pub(crate) fn adyen(hex_key: &str, fields: [&str; 8]) -> String {
    let key = hex::decode(hex_key).unwrap();
    STANDARD.encode(hmac_sha256(&key, &[fields.join(":").as_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_webhooks_libraries_comes_out() {
        let [_, _, (_, signature)] = standard_webhooks(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
