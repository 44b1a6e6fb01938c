//! Signed Stripe events, made ahead so that the load generator only writes bytes.

use hmac::{Hmac, KeyInit as _, Mac as _};
use oncehook::provider::Headers;
use sha2::Sha256;

/// Signing secret of the source.
pub(crate) const SECRET: &str = "whsec_bX4nT9qLw2Rj7VzK5mHd8sPc3FyGe6Ua";

/// Bytes of every body.
pub(crate) const BODY_BYTES: usize = 1_024;

/// Stands in the template where the unique part of the ids goes.
const ID: &str = "000000000000000000000000";

/// A body with its signature.
pub(crate) struct Signed {
    pub(crate) body: Vec<u8>,
    pub(crate) signature: String,
}

/// Makes events with ids of their own.
pub(crate) struct Sender {
    template: String,
    /// Sets the ids of one run apart; those within it are counted.
    run: u64,
    next: u64,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Self {
            template: template(),
            run: rand::random(),
            next: 0,
        }
    }

    /// A body as Stripe sends it.
    pub(crate) fn body(&mut self) -> Vec<u8> {
        self.next += 1;
        // Odd factor: every number once, and neighbours far apart, as random ids are.
        let spread = self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let id = format!("{spread:016x}{:08x}", self.run >> 32);
        self.template.replace(ID, &id).into_bytes()
    }

    pub(crate) fn signed(&mut self, at_s: u64) -> Signed {
        let body = self.body();
        let time = at_s.to_string();
        let mut signature = format!("t={time},v1=");
        // HMAC takes keys of any length.
        if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()) {
            for part in [time.as_bytes(), b".", &body] {
                mac.update(part);
            }
            signature.push_str(&hex::encode(mac.finalize().into_bytes()));
        }
        Signed { body, signature }
    }

    /// Whole HTTP requests.
    pub(crate) fn requests(&mut self, count: usize, at_s: u64) -> Requests {
        let mut requests = Requests::default();
        for _ in 0..count {
            let Signed { body, signature } = self.signed(at_s);
            let head = format!(
                "POST /webhooks/stripe HTTP/1.1\r\nHost: hooks.example.com\r\n\
                 User-Agent: Stripe/1.0 (+https://stripe.com/docs/webhooks)\r\n\
                 Content-Type: application/json; charset=utf-8\r\nAccept: */*; q=0.5, application/json\r\n\
                 Cache-Control: no-cache\r\nStripe-Signature: {signature}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            requests.push(head.as_bytes(), &body);
        }
        requests
    }
}

/// The header fields of such a request, as the node hands them to the provider.
pub(crate) fn headers(signature: &str) -> Headers {
    [
        ("host", "hooks.example.com"),
        (
            "user-agent",
            "Stripe/1.0 (+https://stripe.com/docs/webhooks)",
        ),
        ("content-type", "application/json; charset=utf-8"),
        ("accept", "*/*; q=0.5, application/json"),
        ("cache-control", "no-cache"),
        ("stripe-signature", signature),
    ]
    .into_iter()
    .collect()
}

/// Requests one behind the other.
#[derive(Default)]
pub(crate) struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    fn push(&mut self, head: &[u8], body: &[u8]) {
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(body);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn get(&self, number: usize) -> Option<&[u8]> {
        let end = *self.ends.get(number)?;
        let start = match number.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.bytes.get(start..end)
    }
}

/// A succeeded payment intent, filled up to the wanted length.
fn template() -> String {
    let with = |description: &str| {
        format!(
            concat!(
                r#"{{"id":"evt_{id}","object":"event","api_version":"2025-03-31.basil","created":1764655200,"#,
                r#""data":{{"object":{{"id":"pi_{id}","object":"payment_intent","amount":4200,"amount_received":4200,"#,
                r#""automatic_payment_methods":{{"allow_redirects":"always","enabled":true}},"capture_method":"automatic","#,
                r#""currency":"eur","customer":"cus_{id}","description":"{description}","latest_charge":"ch_{id}","#,
                r#""metadata":{{"order_id":"order_{id}","shop":"main"}},"payment_method_types":["card","sepa_debit"],"#,
                r#""status":"succeeded"}}}},"livemode":true,"pending_webhooks":1,"#,
                r#""request":{{"id":"req_{id}","idempotency_key":null}},"type":"payment_intent.succeeded"}}"#
            ),
            id = ID,
            description = description
        )
    };
    let filling = BODY_BYTES.saturating_sub(with("").len());
    let text = "one order of several things, paid at once; ".repeat(BODY_BYTES / 40 + 1);
    with(text.get(..filling).unwrap_or_default())
}
