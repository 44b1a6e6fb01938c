//! Digests that tell a duplicate from a conflict.
//!
//! Rules are numbered and a number never changes its meaning: the rule's number is stored with
//! the digest, and a later copy of the event is judged under the stored rule.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::json::Document;

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

/// Digest of the comparable content: canonical JSON without the members at `volatile`
/// (JSON Pointers, RFC 6901). `None` where only raw bytes can be compared (duplicate member
/// names).
pub fn canonical_json(document: &Document<'_>, volatile: &[&str]) -> Option<Digest> {
    document.canonical(volatile).map(|bytes| Digest::of(&bytes))
}
