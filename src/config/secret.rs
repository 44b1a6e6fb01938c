//! Secrets: where they come from, and which texts are none.

use std::io::Read as _;
use std::path::Path;

use jiff::Timestamp;

use crate::domain::{Secret, SecretText};
use crate::provider::Provider;

use super::environment::Environment;
use super::section::Section;

/// Longest file that is read for a secret; keys in PEM form are below 10 KiB.
const FILE_MAX: u64 = 64 * 1024;

/// Where `env:` and `file:` values are looked up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vault<'a> {
    pub(super) environment: &'a Environment,
    /// Relative `file:` paths start here: the folder of the configuration file.
    pub(super) folder: &'a Path,
}

impl Vault<'_> {
    /// Resolves `env:NAME`, `file:PATH` or a literal text, without the line break that editors and
    /// `echo` leave at the end.
    ///
    /// # Errors
    ///
    /// A sentence that names the variable or the file, never the value.
    pub(super) fn resolve(&self, written: &str) -> Result<SecretText, String> {
        let text = if let Some(name) = written.strip_prefix("env:") {
            self.environment
                .get(name)
                .ok_or_else(|| {
                    format!(
                        "the environment variable {name} is not set: set it, or write file:PATH"
                    )
                })?
                .to_owned()
        } else if let Some(path) = written.strip_prefix("file:") {
            let path = self.folder.join(path);
            read_file(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?
        } else {
            written.to_owned()
        };
        Ok(SecretText::new(text.trim_end_matches(['\n', '\r'])))
    }
}

/// The text of a file, which must be no longer than a secret can be: a device or a file named by
/// mistake is refused, not read into memory.
fn read_file(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(FILE_MAX + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > FILE_MAX {
        return Err(std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            "longer than 64KiB, so it is no secret",
        ));
    }
    Ok(text)
}

/// A secret as configured: the decoded key, and the text it came from for those who sign.
pub(super) struct Labelled {
    pub(super) secret: Secret,
    pub(super) text: SecretText,
}

/// Reads `secrets = [{ label, value, until }]`. What cannot be used is an error of its own; the
/// others are returned.
pub(super) fn read_all(
    section: &Section<'_>,
    vault: Vault<'_>,
    provider: Option<&dyn Provider>,
    now: Timestamp,
) -> Vec<Labelled> {
    let mut labels: Vec<String> = Vec::new();
    let mut secrets = Vec::new();
    let mut entries = 0;
    for mut entry in section.list("secrets", &section.place) {
        entries += 1;
        let label = entry.required(
            "label",
            "name the secret, for example by the month it was made in",
        );
        if let Some(label) = label {
            entry.place = format!("{}, secret {label:?}", section.place);
            check_label(&entry, label, &mut labels);
        }
        let value = entry.required("value", "write env:NAME, file:PATH or the secret itself");
        let until = entry.moment("until");
        if until.is_some_and(|until| until <= now) {
            entry.warning(
                "until",
                "the secret has ended: it verifies nothing any more and can be removed",
            );
        }
        if let (Some(label), Some(value)) = (label, value)
            && let Some((text, key)) = read(&entry, value, vault, provider)
        {
            secrets.push(Labelled {
                secret: Secret {
                    label: label.to_owned(),
                    key,
                    until,
                },
                text,
            });
        }
        entry.finish();
    }
    if entries == 0 {
        section.error(
            "secrets",
            "`secrets` is missing: write secrets = [{ label = \"a\", value = \"env:NAME\" }]; without one nothing can be verified",
        );
    }
    secrets
}

fn check_label(entry: &Section<'_>, label: &str, seen: &mut Vec<String>) {
    if label.trim().is_empty() || label.len() > 64 || label.chars().any(char::is_control) {
        entry.error("label", "`label` must have 1 to 64 visible characters");
    } else if seen.iter().any(|other| other == label) {
        entry.error(
            "label",
            format!("the label {label:?} is used twice: each secret needs its own"),
        );
    }
    seen.push(label.to_owned());
}

fn read(
    entry: &Section<'_>,
    written: &str,
    vault: Vault<'_>,
    provider: Option<&dyn Provider>,
) -> Option<(SecretText, Vec<u8>)> {
    let read = vault.resolve(written).and_then(|text| {
        refuse_stand_in(text.expose())?;
        match provider {
            Some(provider) => provider
                .key(&text, true)
                .map(|key| (text, key))
                .map_err(|error| format!("the secret cannot be used: {error}")),
            // The provider itself is wrong, which has been said; the key cannot be judged.
            None => Ok((text, Vec::new())),
        }
    });
    match read {
        Ok(pair) => Some(pair),
        Err(message) => {
            entry.error("value", message);
            None
        }
    }
}

/// Texts that stand where a secret should be.
fn refuse_stand_in(text: &str) -> Result<(), String> {
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
            let error = refuse_stand_in(text).unwrap_err();
            assert!(text.trim().is_empty() || !error.contains(text), "{error}");
        }
        for text in [
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056",
            "It's a Secret to Everybody",
            "correct horse battery staple",
        ] {
            assert_eq!(refuse_stand_in(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn values_come_from_a_variable_a_file_or_the_text_itself() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("s"), "from file\r\n").unwrap();
        let environment = [("NAME", "from env\n")].into_iter().collect();
        let vault = Vault {
            environment: &environment,
            folder: folder.path(),
        };
        let value = |written| vault.resolve(written).map(|s| s.expose().to_owned());
        assert_eq!(value("env:NAME").unwrap(), "from env");
        assert_eq!(value("file:s").unwrap(), "from file");
        assert_eq!(value("literal").unwrap(), "literal");
        assert!(value("env:OTHER").unwrap_err().contains("OTHER"));
        assert!(value("file:none").unwrap_err().contains("none"));
    }
}
