//! `[[source]]`: a registered sender.

use jiff::Timestamp;

use crate::dispatch::{SpecError, rules};
use crate::domain::{Mode, SecretText};
use crate::provider::{self, HmacOptions, OnConflict, Options, Source};

use crate::provider::internal;

use super::problem::nearest;
use super::secret::{self, Vault};
use super::section::Section;

/// A source and what only the command line needs of it.
#[derive(Debug, Clone)]
pub struct SourceSettings {
    /// What the engine runs.
    pub source: Source,
    /// The secrets as written, in the order of `source.secrets`, for `simulate`.
    pub texts: Vec<SecretText>,
    /// The URL the provider posts to, where its signature covers it.
    pub public_url: Option<String>,
}

/// Reads every `[[source]]`.
pub(super) fn read_all(
    root: &Section<'_>,
    vault: Vault<'_>,
    now: Timestamp,
) -> Vec<SourceSettings> {
    let mut names: Vec<String> = Vec::new();
    let mut sources = Vec::new();
    for mut section in root.list("source", "[[source]]") {
        let name = name(&mut section, "source", &mut names);
        let source = read(&section, name, vault, now);
        section.finish();
        sources.extend(source);
    }
    sources
}

/// Reads and checks a `name`, and puts it into the place of every later message.
pub(super) fn name(
    section: &mut Section<'_>,
    what: &str,
    seen: &mut Vec<String>,
) -> Option<String> {
    let name = section.required("name", &format!("every {what} has a name"))?;
    section.place = format!("{what} {name:?}");
    if !rules::is_name(name) {
        section.error("name", SpecError::Name.to_string());
        return None;
    }
    if seen.iter().any(|other| other == name) {
        section.error("name", SpecError::NameTaken.to_string());
        return None;
    }
    seen.push(name.to_owned());
    Some(name.to_owned())
}

/// Reads `was`, the former name.
pub(super) fn was(section: &Section<'_>, name: Option<&str>) -> Option<String> {
    let was = section.text("was")?;
    match rules::check_was(was, name) {
        Ok(()) => Some(was.to_owned()),
        Err(error) => {
            section.error("was", error.to_string());
            None
        }
    }
}

/// Reports a former name that is still somebody's name.
pub(super) fn check_was(root: &Section<'_>, what: &str, list: &[(String, Option<String>)]) {
    for (name, was) in list {
        if let Some(was) = was
            && list.iter().any(|(other, _)| other == was)
        {
            root.problems().error(
                &root.origin,
                &format!("{what} {name:?}"),
                SpecError::WasTaken(was.clone()).to_string(),
            );
        }
    }
}

fn read(
    section: &Section<'_>,
    name: Option<String>,
    vault: Vault<'_>,
    now: Timestamp,
) -> Option<SourceSettings> {
    let public_url = public_url(section);
    let provider = provider(section, public_url.clone());
    let secrets = match &provider {
        Some(provider) if !provider.receives_requests() => Vec::new(),
        _ => secret::read_all(section, vault, provider.as_deref(), now),
    };
    let accept_modes = accept_modes(section);
    if accept_modes.is_some()
        && provider
            .as_ref()
            .is_some_and(|provider| !provider.has_modes())
    {
        section.error(
            "accept_modes",
            "this provider's events do not tell live from test: none would be accepted; leave `accept_modes` out",
        );
    }
    let on_conflict = section
        .word(
            "on_conflict",
            &[("ack", OnConflict::Ack), ("reject", OnConflict::Reject)],
        )
        .unwrap_or_default();
    let was = was(section, name.as_deref());
    if !secrets.is_empty() && !secrets.iter().any(|s| s.secret.alive(now)) {
        section.warning(
            "secrets",
            "every secret has ended: nothing this source receives can be verified",
        );
    }
    let (secrets, texts) = secrets.into_iter().map(|s| (s.secret, s.text)).unzip();
    Some(SourceSettings {
        source: Source {
            name: name?,
            was,
            provider: provider?,
            secrets,
            accept_modes,
            on_conflict,
        },
        texts,
        public_url,
    })
}

fn provider(
    section: &Section<'_>,
    public_url: Option<String>,
) -> Option<std::sync::Arc<dyn provider::Provider>> {
    let known = format!("{} or {}", provider::NAMES.join(", "), internal::NAME);
    let name = section.required("provider", &format!("one of {known}"));
    let options = Options {
        tolerance: section.positive("tolerance"),
        dialect: section.text("dialect").map(str::to_owned),
        public_url,
        hmac: hmac(section),
    };
    let name = name?;
    if name == internal::NAME {
        section.refuse(
            &["secrets", "accept_modes", "on_conflict"],
            "belongs to a source that takes requests, not to an internal one",
        );
    } else if !provider::NAMES.contains(&name) {
        let hint = nearest(name, provider::NAMES.iter().copied()).map_or_else(
            || format!("known: {known}"),
            |near| format!("did you mean {near:?}?"),
        );
        section.error("provider", format!("unknown provider {name:?}: {hint}"));
        return None;
    }
    if name != "hmac" && section.has("hmac") {
        section.error(
            "hmac",
            format!("[source.hmac] belongs to provider = \"hmac\", not to {name:?}"),
        );
        return None;
    }
    if name == "hmac" && section.has("hmac") && options.hmac.is_none() {
        return None; // What is wrong in [source.hmac] has been said.
    }
    match provider::build(name, &options) {
        Ok(provider) => {
            for warning in provider.warnings() {
                section.warning("provider", warning);
            }
            Some(provider)
        }
        Err(error) => {
            section.error("provider", error.to_string());
            None
        }
    }
}

fn public_url(section: &Section<'_>) -> Option<String> {
    let text = section.text("public_url")?;
    if let Err(message) = rules::check_url(text) {
        section.error("public_url", format!("`public_url` {message}"));
        return None;
    }
    Some(text.to_owned())
}

fn accept_modes(section: &Section<'_>) -> Option<Vec<Mode>> {
    let written = section.texts("accept_modes")?;
    let modes: Vec<_> = written
        .iter()
        .filter_map(|(word, origin)| match *word {
            "live" => Some(Mode::Live),
            "test" => Some(Mode::Test),
            other => {
                section.problems().error(
                    origin,
                    &section.place,
                    format!("`accept_modes` holds {other:?}, but knows only \"live\" and \"test\""),
                );
                None
            }
        })
        .collect();
    if written.is_empty() {
        section.error(
            "accept_modes",
            "`accept_modes` is empty: leave it out to accept every mode",
        );
    }
    Some(modes)
}

/// Reads `[source.hmac]`. Serde stops at the first error; unknown keys are taken out one by one,
/// so that all of them are reported.
fn hmac(section: &Section<'_>) -> Option<HmacOptions> {
    let place = format!("{}, [source.hmac]", section.place);
    let below = section.below("hmac", place)?;
    let mut table = below.plain();
    let mut unknown = false;
    loop {
        let error = match toml::Value::Table(table.clone()).try_into::<HmacOptions>() {
            Ok(_) if unknown => return None,
            Ok(options) => return Some(options),
            Err(error) => error,
        };
        let message = error.message().to_owned();
        let mut quoted = message.split('`').skip(1).step_by(2);
        let key = quoted.next().unwrap_or_default().to_owned();
        if message.starts_with("unknown field") && table.remove(&key).is_some() {
            unknown = true;
            let hint = nearest(&key, quoted)
                .map(|near| format!(": did you mean `{near}`?"))
                .unwrap_or_default();
            below.error(&key, format!("unknown key `{key}`{hint}"));
        } else {
            let message = message.trim_end().replace("missing field", "missing key");
            below.error(&key, message);
            return None;
        }
    }
}
