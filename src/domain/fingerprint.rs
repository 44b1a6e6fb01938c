//! Digests that tell a duplicate from a conflict.
//!
//! Raw digests equal: a duplicate. Else the comparable content decides, under the rule whose
//! number is stored with the first copy. Rules are numbered per preset and a number never changes
//! its meaning: a later copy is judged under the stored rule, whatever the preset's newest one is.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::json::Value;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// SHA-256 of the bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// A digest read back from the database.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 lower-case hex digits.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

/// One numbered way to compare two copies of an event.
///
/// A preset lists all rules it ever had, the newest last. A rule that was released is never
/// edited: another list of volatile members is another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Stored beside the digest; from 1 on.
    pub number: i16,
    /// JSON Pointers of the members in which honest copies may differ; `*` as a token stands for
    /// any member or index.
    pub volatile: &'static [&'static str],
}

impl Rule {
    /// The number that says: only the raw bytes compare.
    pub const RAW: i16 = 0;

    /// The rule of this number among a preset's.
    pub fn numbered(rules: &[Self], number: i16) -> Option<&Self> {
        rules.iter().find(|rule| rule.number == number)
    }

    /// Digest of the comparable content. `None` where only raw bytes can be compared (duplicate
    /// member names).
    pub fn digest(&self, value: Value<'_>) -> Option<Digest> {
        canonical_json(value, self.volatile)
    }
}

/// Digest of the comparable content: canonical JSON without the members at `volatile`
/// (JSON Pointers, RFC 6901, from this value on). `None` where only raw bytes can be compared
/// (duplicate member names).
pub fn canonical_json(value: Value<'_>, volatile: &[&str]) -> Option<Digest> {
    value.canonical(volatile).map(|bytes| Digest::of(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::json::Document;

    fn digest(text: &str, volatile: &'static [&'static str]) -> Option<Digest> {
        let rule = Rule {
            number: 1,
            volatile,
        };
        rule.digest(Document::parse(text.as_bytes()).unwrap().root())
    }

    #[test]
    fn the_canonical_form_is_pinned_because_digests_of_it_are_stored() {
        let text = r#" {"b":[1.0,-0,1e400,{"y":null,"x":true}],"a":"\u00e9\/\"\\\u0000\n","p":1} "#;
        assert_eq!(
            digest(text, &["/p"]),
            Some(Digest::of(
                "{\"a\":\"é/\\\"\\\\\\u0000\\u000a\",\"b\":[1.0,-0,1e400,{\"x\":true,\"y\":null}]}"
                    .as_bytes()
            ))
        );
    }

    #[test]
    fn f25_only_volatile_members_may_differ() {
        let one = r#"{"id":"evt_1","amount":5,"pending_webhooks":2}"#;
        let counted_down = r#"{"pending_webhooks":1,"id":"evt_1","amount":5}"#;
        let changed = r#"{"id":"evt_1","amount":6,"pending_webhooks":2}"#;
        let volatile = &["/pending_webhooks"];
        assert_eq!(digest(one, volatile), digest(counted_down, volatile));
        assert_ne!(digest(one, volatile), digest(changed, volatile));
        assert_ne!(digest(one, &[]), digest(counted_down, &[]));
    }

    #[test]
    fn rules_are_found_by_number_only() {
        let rules = [
            Rule {
                number: 1,
                volatile: &[],
            },
            Rule {
                number: 2,
                volatile: &["/x"],
            },
        ];
        assert_eq!(Rule::numbered(&rules, 2), rules.get(1));
        assert_eq!(Rule::numbered(&rules, Rule::RAW), None);
        assert_eq!(Rule::numbered(&rules, 3), None);
    }
}
