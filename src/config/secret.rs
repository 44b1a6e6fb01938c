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
        text.refuse_stand_in()?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
