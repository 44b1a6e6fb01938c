//! Secrets that cannot be printed.

use std::fmt;

use jiff::Timestamp;

/// A secret as the provider's dashboard shows it. `Debug` prints `[redacted]`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether it is no secret, but a text that stands where one should be.
    pub(crate) fn refuse_stand_in(&self) -> Result<(), String> {
        const WORDS: [&str; 14] = [
            "changeme",
            "change_me",
            "change-me",
            "replaceme",
            "replace_me",
            "replace-me",
            "replace_with",
            "placeholder",
            "your_secret",
            "your-secret",
            "yoursecret",
            "secret_here",
            "secret-here",
            "...",
        ];
        let text = self.expose();
        if text.is_empty() {
            return Err("the secret is empty: anybody can sign with an empty key".to_owned());
        }
        if text.trim().is_empty() {
            return Err("the secret is blank".to_owned());
        }
        if text.starts_with("v1,") || text.starts_with("v1a,") {
            return Err(
                "the secret begins like a signature (`v1,`): copy the signing secret, not a signature header"
                    .to_owned(),
            );
        }
        let lower = text.to_ascii_lowercase();
        let bare = lower
            .split_once('_')
            .map_or(lower.as_str(), |(_, rest)| rest);
        let mut letters: Vec<char> = bare.chars().collect();
        letters.sort_unstable();
        letters.dedup();
        if WORDS.iter().any(|word| lower.contains(word))
            || (lower.starts_with('<') && lower.ends_with('>'))
            || (!bare.is_empty() && letters.len() <= 2)
        {
            return Err(
                "the secret looks like a placeholder: put in the one the provider's dashboard shows"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// One labelled key of a source, already decoded by the source's preset.
#[derive(Clone)]
pub struct Secret {
    /// The operator's name for it; recorded with every request it verified.
    pub label: String,
    /// Key bytes as the preset's scheme needs them.
    pub key: Vec<u8>,
    /// From this moment on it no longer verifies anything.
    pub until: Option<Timestamp>,
}

impl Secret {
    /// Whether the secret may still verify a request received at `now`.
    pub fn alive(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("label", &self.label)
            .field("key", &"[redacted]")
            .field("until", &self.until)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f12_f14_stand_ins_are_refused_and_real_secrets_are_not() {
        for text in [
            "",
            " ",
            "\t",
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            "v1a,abc",
            "changeme",
            "whsec_CHANGEME_CHANGEME",
            "xxxxxxxxxxxxxxxxxxxx",
            "whsec_xxxxxxxxxxxxxxxxxxxxxx",
            "<your signing secret>",
            "whsec_...",
            "00000000000000000000000000000000",
            "my_secret_here_please",
        ] {
            let error = SecretText::new(text).refuse_stand_in().unwrap_err();
            assert!(text.trim().is_empty() || !error.contains(text), "{error}");
        }
        for text in [
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056",
            "It's a Secret to Everybody",
            "correct horse battery staple",
        ] {
            assert_eq!(SecretText::new(text).refuse_stand_in(), Ok(()), "{text}");
        }
    }
}
