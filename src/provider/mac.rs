//! Hashes, signature algorithms and the two ways of writing a signature as text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};

use super::compare;

/// Hash of an HMAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hash {
    /// SHA-1, for old senders only.
    Sha1,
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// HMAC over the parts, one after the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Sha1 => run::<Hmac<Sha1>>(key, parts),
            Self::Sha256 => run::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => run::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => run::<Hmac<Sha512>>(key, parts),
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

fn run<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    // HMAC takes keys of any length; an empty MAC would match nothing, since what is received is
    // decoded to the hash's length first.
    let Ok(mut mac) = M::new_from_slice(key) else {
        return Vec::new();
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// How signatures are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Hmac(Hash),
    /// The key is the public key; RFC 8032, strict: no small-order keys, no second spelling.
    Ed25519,
}

impl Algorithm {
    /// Length of a signature in bytes.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Hmac(hash) => hash.bytes(),
            Self::Ed25519 => 64,
        }
    }

    /// Whether one of the decoded signatures is this key's over the parts.
    pub(crate) fn any_matches(self, key: &[u8], parts: &[&[u8]], received: &[Vec<u8>]) -> bool {
        match self {
            Self::Hmac(hash) => {
                let mac = hash.hmac(key, parts);
                received.iter().any(|given| compare::same(&mac, given))
            }
            Self::Ed25519 => {
                let Some(public) = public_key(key) else {
                    return false;
                };
                let message = parts.concat();
                received.iter().any(|bytes| {
                    Signature::from_slice(bytes)
                        .is_ok_and(|signature| public.verify_strict(&message, &signature).is_ok())
                })
            }
        }
    }

    /// Signs with the MAC key, or with the 32-byte seed of a private key.
    pub(crate) fn sign(self, key: &[u8], parts: &[&[u8]]) -> Option<Vec<u8>> {
        match self {
            Self::Hmac(hash) => Some(hash.hmac(key, parts)),
            Self::Ed25519 => {
                let seed: &[u8; 32] = key.try_into().ok()?;
                let signature = SigningKey::from_bytes(seed).sign(&parts.concat());
                Some(signature.to_bytes().to_vec())
            }
        }
    }
}

/// A usable Ed25519 public key: 32 bytes, on the curve, not of small order.
pub(crate) fn public_key(key: &[u8]) -> Option<VerifyingKey> {
    let key = VerifyingKey::from_bytes(key.try_into().ok()?).ok()?;
    (!key.is_weak()).then_some(key)
}

/// How a signature is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Hex digits of either case.
    #[default]
    Hex,
    /// Standard base64 with padding, strict.
    Base64,
}

impl Encoding {
    /// Decodes to exactly `bytes` bytes, or not at all.
    pub(crate) fn decode(self, text: &[u8], bytes: usize) -> Option<Vec<u8>> {
        let decoded = match self {
            Self::Hex => hex::decode(text).ok()?,
            Self::Base64 => STANDARD.decode(text).ok()?,
        };
        (decoded.len() == bytes).then_some(decoded)
    }

    pub(crate) fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Hex => hex::encode(bytes),
            Self::Base64 => STANDARD.encode(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_agree_with_rfc_2202_and_rfc_4231() {
        // Test case 2 of both: key "Jefe".
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        for (hash, expected) in [
            (Hash::Sha1, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
            (
                Hash::Sha256,
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                Hash::Sha384,
                "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649",
            ),
            (
                Hash::Sha512,
                "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
            ),
        ] {
            let mac = hash.hmac(b"Jefe", &parts);
            assert_eq!(hex::encode(&mac), expected);
            assert_eq!(mac.len(), hash.bytes());
        }
    }

    #[test]
    fn f13_encodings_are_strict() {
        for bad in ["", "00", "zz", "0g", "é0", &"0".repeat(63), &"0".repeat(65)] {
            assert_eq!(Encoding::Hex.decode(bad.as_bytes(), 32), None, "{bad}");
        }
        assert!(
            Encoding::Hex
                .decode("aA".repeat(32).as_bytes(), 32)
                .is_some()
        );
        for bad in [
            "QQ", "QQ=", "QR==", "Q Q=", "QQ==\n", "!!!!", "-_-_", "QQ==QQ==",
        ] {
            assert_eq!(Encoding::Base64.decode(bad.as_bytes(), 1), None, "{bad}");
        }
        assert_eq!(Encoding::Base64.decode(b"QQ==", 1), Some(vec![b'A']));
        assert_eq!(Encoding::Base64.decode(b"QUJD", 1), None);
    }

    #[test]
    fn small_order_keys_are_refused() {
        let mut identity = [0_u8; 32];
        identity[0] = 1;
        assert!(public_key(&identity).is_none());
        assert!(public_key(&[0; 32]).is_none());
        assert!(public_key(&[1; 31]).is_none());
    }
}
