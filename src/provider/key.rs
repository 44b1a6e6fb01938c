//! How a secret is read, and which ones are refused at start.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::domain::SecretText;

use super::{SettingError, mac};

/// Fewest bytes of a key that is accepted at start.
const BYTES_MIN: usize = 16;

/// Strict about every character; only the padding at the end may be left off, as some senders do.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How the key is made of the text the sender's dashboard shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// The bytes of the whole text. Blanks inside are allowed where the user chooses the text.
    Text { blanks: bool },
    /// Hex digits.
    Hex,
    /// Base64 behind an optional prefix.
    Base64 { prefix: &'static str },
    /// An Ed25519 public key in base64 behind an optional prefix; `private` begins the private one.
    Ed25519 {
        public: &'static str,
        private: &'static str,
    },
}

/// Reads a secret; `strict` also refuses what is too short, a placeholder or of another kind.
pub(crate) fn read(
    form: KeyForm,
    text: &SecretText,
    strict: bool,
) -> Result<Vec<u8>, SettingError> {
    let text = text.expose();
    if text.trim().is_empty() {
        return Err(refuse("it is empty: anybody could sign with an empty key"));
    }
    if strict {
        check_text(form, text)?;
    }
    let key = decode(form, text)?;
    if key.is_empty() {
        return Err(refuse(
            "it decodes to nothing: anybody could sign with an empty key",
        ));
    }
    if strict {
        check_key(&key)?;
    }
    Ok(key)
}

/// The 32-byte seed that signs, of a private key as the sender keeps it.
pub(crate) fn seed(
    public: &'static str,
    private: &'static str,
    text: &SecretText,
) -> Result<Vec<u8>, SettingError> {
    let text = text.expose();
    if text.starts_with(public) {
        return Err(SettingError(format!(
            "a public key cannot sign: give the private key ({private}...)"
        )));
    }
    let seed = base64(text.strip_prefix(private).unwrap_or(text))?;
    match seed.get(..32) {
        // Some libraries write the seed alone, some the seed and the public key.
        Some(first) if seed.len() == 32 || seed.len() == 64 => Ok(first.to_vec()),
        _ => Err(refuse("a private key has 32 or 64 bytes")),
    }
}

fn decode(form: KeyForm, text: &str) -> Result<Vec<u8>, SettingError> {
    match form {
        KeyForm::Text { .. } => Ok(text.as_bytes().to_vec()),
        KeyForm::Hex => hex::decode(text).map_err(|_| {
            refuse("this sender's keys are pairs of hex digits (0-9, A-F), and it is not")
        }),
        KeyForm::Base64 { prefix } => base64(text.strip_prefix(prefix).unwrap_or(text)),
        KeyForm::Ed25519 { public, private } => {
            if text.starts_with(private) {
                return Err(SettingError(format!(
                    "it looks like a private key: a receiver needs the public one ({public}...)"
                )));
            }
            let key = base64(text.strip_prefix(public).unwrap_or(text))?;
            match mac::public_key(&key) {
                Some(_) => Ok(key),
                None => Err(refuse("it is no Ed25519 public key of 32 bytes")),
            }
        }
    }
}

fn base64(text: &str) -> Result<Vec<u8>, SettingError> {
    BASE64
        .decode(text)
        .map_err(|_| refuse("what follows the prefix is not base64"))
}

fn check_text(form: KeyForm, text: &str) -> Result<(), SettingError> {
    if text.starts_with("-----BEGIN") {
        return Err(refuse(
            "it looks like a PEM file, and this sender uses none",
        ));
    }
    let blanks = matches!(form, KeyForm::Text { blanks: true });
    let stray = |c: char| c.is_control() || (c.is_whitespace() && (!blanks || c != ' '));
    if text != text.trim() || text.contains(stray) {
        return Err(refuse(
            "it has white space where none belongs: was more than the secret copied?",
        ));
    }
    if text.starts_with("v1,") || text.starts_with("v1a,") {
        return Err(refuse(
            "it looks like a signature (v1,...), not like the secret that makes one",
        ));
    }
    let public = matches!(form, KeyForm::Ed25519 { .. });
    if !public && text.starts_with("whpk_") {
        return Err(refuse(
            "it looks like a public key (whpk_...): everybody knows it, so it cannot be a secret",
        ));
    }
    if public && text.starts_with("whsec_") {
        return Err(refuse(
            "it looks like a shared secret (whsec_...), and this dialect needs a public key (whpk_...)",
        ));
    }
    if is_placeholder(text) {
        return Err(refuse("it is a placeholder, not a secret"));
    }
    Ok(())
}

fn check_key(key: &[u8]) -> Result<(), SettingError> {
    if key.len() < BYTES_MIN {
        return Err(SettingError(format!(
            "the key has {} bytes and needs at least {BYTES_MIN}",
            key.len()
        )));
    }
    if key.iter().all(|byte| Some(byte) == key.first()) {
        return Err(refuse(
            "it is a placeholder: all bytes of the key are equal",
        ));
    }
    Ok(())
}

/// Whether the whole text is something people write where a secret should stand.
fn is_placeholder(text: &str) -> bool {
    const WORDS: [&str; 29] = [
        "changeme",
        "changethis",
        "changeit",
        "replaceme",
        "replacethis",
        "fillmein",
        "secret",
        "mysecret",
        "yoursecret",
        "testsecret",
        "secretkey",
        "secrethere",
        "webhooksecret",
        "mywebhooksecret",
        "whsec",
        "whsecret",
        "signingsecret",
        "supersecret",
        "verysecret",
        "topsecret",
        "password",
        "placeholder",
        "example",
        "dummy",
        "sample",
        "test",
        "testing",
        "todo",
        "foobar",
    ];
    if ["<", "${", "{{", "$(", "%"]
        .iter()
        .any(|open| text.starts_with(open))
    {
        return true;
    }
    let lower = text.to_lowercase();
    let body = lower.strip_prefix("whsec_").unwrap_or(&lower);
    if ["your-", "your_", "your ", "my-secret", "my_secret"]
        .iter()
        .any(|start| body.starts_with(start))
    {
        return true;
    }
    let letters: String = body.chars().filter(char::is_ascii_alphanumeric).collect();
    let unit = repeated_unit(letters.as_bytes());
    letters.is_empty()
        || unit.len() < 3
        || WORDS.iter().any(|word| word.as_bytes() == unit)
        || is_sequence(letters.as_bytes())
}

/// The shortest prefix of which the whole is made by repetition.
fn repeated_unit(text: &[u8]) -> &[u8] {
    (1..=text.len() / 2)
        .filter(|length| text.len().is_multiple_of(*length))
        .find_map(|length| {
            let unit = text.get(..length)?;
            text.chunks(length)
                .all(|chunk| chunk == unit)
                .then_some(unit)
        })
        .unwrap_or(text)
}

/// `123456789...`, `0123456789abcdef`, `abcdefgh...` and the like.
fn is_sequence(text: &[u8]) -> bool {
    text.windows(2).all(|pair| match pair {
        [one, next] => {
            *next == one.wrapping_add(1)
                || matches!((one, next), (b'9', b'0' | b'a') | (b'z', b'a'))
        }
        _ => true,
    })
}

fn refuse(why: &str) -> SettingError {
    SettingError(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: KeyForm = KeyForm::Text { blanks: false };
    const CHOSEN: KeyForm = KeyForm::Text { blanks: true };
    const BASE64_FORM: KeyForm = KeyForm::Base64 { prefix: "whsec_" };
    const ED25519: KeyForm = KeyForm::Ed25519 {
        public: "whpk_",
        private: "whsk_",
    };

    fn strict(form: KeyForm, text: &str) -> Result<Vec<u8>, SettingError> {
        read(form, &SecretText::new(text), true)
    }

    #[test]
    fn f12_empty_short_and_placeholder_secrets_are_refused() {
        let placeholders = [
            "",
            " ",
            "\t\n",
            "short",
            "whsec_",
            "whsec_...",
            "whsec_…",
            "whsec_xxxxxxxxxxxxxxxxxxxxxxxx",
            "changeme",
            "ChangeMe-ChangeMe",
            "secret",
            "secretsecretsecret",
            "your-webhook-secret-here",
            "YOUR_STRIPE_WEBHOOK_SECRET",
            "<your signing secret>",
            "${STRIPE_WEBHOOK_SECRET}",
            "{{ stripe_secret_value }}",
            "aaaaaaaaaaaaaaaaaaaaaaaa",
            "0000000000000000",
            "testtesttesttest",
            "abababababababab",
            "1234567890123456",
            "0123456789abcdef",
            "****************",
            "whsec_test_secret",
            "xxx",
            "----------------",
        ];
        for text in placeholders {
            for form in [TEXT, CHOSEN] {
                let error = strict(form, text).unwrap_err().to_string();
                assert!(
                    text.len() < 7 || !error.contains(text),
                    "{error} shows {text}"
                );
            }
        }
        for good in [
            "whsec_5f8Zc0mWq7Yb2nTr9LxV",
            "9f86d081884c7d65",
            "correct horse battery",
            "my test of secrets 77",
        ] {
            assert_eq!(strict(CHOSEN, good).unwrap(), good.as_bytes(), "{good}");
        }
    }

    #[test]
    fn f13_keys_are_decoded_strictly_and_measured_afterwards() {
        for bad in [
            "whsec_",
            "whsec_!!!!",
            "whsec_QQ==",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!",
            "MfKQ",
            "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "whsec_MfKQ9r8G KYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        ] {
            assert!(strict(BASE64_FORM, bad).is_err(), "{bad}");
        }
        for good in [
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        ] {
            assert_eq!(strict(BASE64_FORM, good).unwrap().len(), 24);
        }
        let hex = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";
        assert_eq!(strict(KeyForm::Hex, hex).unwrap().len(), 32);
        for bad in [
            &hex[..63],
            &hex[..30],
            "0x44782DEF547AAA06C910C43932B1EB0C",
            "not hex at all, not at all",
            "",
        ] {
            assert!(strict(KeyForm::Hex, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn f14_look_alikes_are_refused_with_a_sentence() {
        let mut cases = vec![
            (
                TEXT,
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
                "signature",
            ),
            (
                BASE64_FORM,
                "v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "signature",
            ),
            (
                BASE64_FORM,
                "whpk_ZlN4eg7dSSqi0moX9hQUk3orrOouK3QVQSlJa248c/g=",
                "public key",
            ),
            (
                ED25519,
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "shared secret",
            ),
            (
                ED25519,
                "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
                "private key",
            ),
            (TEXT, " whsec_5f8Zc0mWq7Yb2nTr9LxV", "white space"),
            (TEXT, "whsec_5f8Zc0 mWq7Yb2nTr9LxV", "white space"),
            (CHOSEN, "correct horse\tbattery", "white space"),
            (CHOSEN, "correct horse battery\n", "white space"),
            (TEXT, "-----BEGIN PUBLIC KEY-----", "PEM"),
        ];
        for (form, text, sentence) in cases.drain(..) {
            let error = strict(form, text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{text}: {error}");
        }
        assert_eq!(
            strict(ED25519, "whpk_ZlN4eg7dSSqi0moX9hQUk3orrOouK3QVQSlJa248c/g=")
                .unwrap()
                .len(),
            32
        );
    }

    #[test]
    fn the_offline_tools_only_ask_for_what_decodes() {
        let loose = |form, text: &str| read(form, &SecretText::new(text), false);
        assert_eq!(loose(TEXT, "foo").unwrap(), b"foo");
        assert_eq!(loose(BASE64_FORM, "whsec_QQ==").unwrap(), b"A");
        assert!(loose(BASE64_FORM, "whsec_!!!!").is_err());
        assert!(loose(BASE64_FORM, "whsec_").is_err());
        assert!(loose(KeyForm::Hex, "xyz").is_err());
    }

    #[test]
    fn only_a_private_key_signs() {
        let seed_of = |text: &str| seed("whpk_", "whsk_", &SecretText::new(text));
        assert!(seed_of("whpk_ZlN4eg7dSSqi0moX9hQUk3orrOouK3QVQSlJa248c/g=").is_err());
        assert!(seed_of("whsk_QQ==").is_err());
        assert_eq!(
            seed_of("whsk_ZlN4eg7dSSqi0moX9hQUk3orrOouK3QVQSlJa248c/g=")
                .unwrap()
                .len(),
            32
        );
    }
}
