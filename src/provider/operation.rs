//! Operations: intents under a key that a client of our own API chose. No sender, no signature, no URL
//! for webhooks.

use std::time::Duration;

use jiff::Timestamp;

use crate::domain::fingerprint::{Rule, canonical_json};
use crate::domain::json::Document;
use crate::domain::{Digest, EventKey, Item, Reading, Refusal, Secret, SecretText};

use super::{Provider, Request, SettingError, SignedRequest, Verified};

/// Name of the preset, and recipe of its keys.
pub(crate) const NAME: &str = "operation";

/// One stored list of volatile members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DigestRule {
    /// From 1 on, within one operation.
    pub(crate) number: i16,
    /// JSON Pointers.
    pub(crate) volatile: Vec<String>,
}

impl DigestRule {
    /// Digest of canonical JSON without the volatile members; `None` where only raw bytes compare.
    pub(crate) fn digest(&self, body: &[u8]) -> Option<Digest> {
        let document = Document::parse(body).ok()?;
        let volatile: Vec<&str> = self.volatile.iter().map(String::as_str).collect();
        canonical_json(document.root(), &volatile)
    }
}

/// The preset of one operation's source.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Every rule it ever had.
    rules: Vec<DigestRule>,
    /// The number of the present one.
    current: i16,
    keep_key: Option<Duration>,
}

impl Operation {
    /// `current` is the number of one of the rules; a key expires `keep_key` after it was first seen.
    pub(crate) fn new(rules: Vec<DigestRule>, current: i16, keep_key: Option<Duration>) -> Self {
        Self {
            rules,
            current,
            keep_key,
        }
    }

    fn rule(&self, number: i16) -> Option<&DigestRule> {
        self.rules.iter().find(|rule| rule.number == number)
    }
}

/// The item of an intent, whose body is the whole request. `digest` is that of the source's present rule.
pub(crate) fn item(source: &dyn Provider, key: EventKey, body: &[u8]) -> Item {
    let rule = source.present_rule();
    let canonical_digest = source.comparable(rule, body);
    Item {
        provider_id: None,
        event_type: None,
        entity: None,
        account: None,
        mode: None,
        occurred_at: None,
        range: 0..body.len(),
        raw_digest: Digest::of(body),
        digest_rule: canonical_digest.map_or(Rule::RAW, |_| rule),
        canonical_digest,
        reading: Reading::Event,
        key,
    }
}

impl Provider for Operation {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self, _text: &SecretText, _strict: bool) -> Result<Vec<u8>, SettingError> {
        Err(SettingError(
            "an operation has no secrets: its clients have tokens".to_owned(),
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
        self.rule(rule)?.digest(item)
    }

    fn recipe(&self) -> String {
        NAME.to_owned()
    }

    fn receives_requests(&self) -> bool {
        false
    }

    fn present_rule(&self) -> i16 {
        self.current
    }

    fn knows_rule(&self, rule: i16) -> bool {
        rule == Rule::RAW || self.rule(rule).is_some()
    }

    fn keep_key(&self) -> Option<Duration> {
        self.keep_key
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
            "an operation takes no webhooks: POST /v1/operations/{operation}".to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(current: i16) -> Operation {
        let rule = |number, volatile: &[&str]| DigestRule {
            number,
            volatile: volatile.iter().map(|p| (*p).to_owned()).collect(),
        };
        let rules = vec![rule(1, &[]), rule(2, &["/sent_at"])];
        Operation::new(rules, current, None)
    }

    fn digest(current: i16, body: &str) -> Option<Digest> {
        item(
            &operation(current),
            EventKey::of("k").unwrap(),
            body.as_bytes(),
        )
        .canonical_digest
    }

    #[test]
    fn only_volatile_members_order_and_white_space_may_differ() {
        let (one, other) = (r#"{"a":1,"sent_at":1}"#, r#"{ "sent_at":2, "a":1 }"#);
        assert_ne!(digest(1, one), digest(1, other));
        assert_eq!(digest(2, one), digest(2, other));
        assert_ne!(digest(2, one), digest(2, r#"{"a":1.0,"sent_at":1}"#));
        let big = |last: u8| format!(r#"{{"amount":1234567890123456{last}}}"#);
        assert_ne!(digest(2, &big(1)), digest(2, &big(2)));
    }

    #[test]
    fn what_is_no_comparable_json_is_compared_by_its_bytes() {
        for body in ["", "no", r#"{"a":1,"a":1}"#] {
            let item = item(&operation(2), EventKey::of("k").unwrap(), body.as_bytes());
            assert_eq!((item.canonical_digest, item.digest_rule), (None, Rule::RAW));
        }
    }
}
