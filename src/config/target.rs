//! What a handler does: its function, or its receiver.

use jiff::Timestamp;

use crate::dispatch::{HandlerKind, HttpProbe, HttpTarget, HttpUnknown, rules};
use crate::domain::{ProbeSchedule, SecretText};
use crate::provider::{self, Options};

use super::secret::{self, Vault};
use super::section::Section;
use super::units;

/// The function of a `sql` handler, in our database or in that of `url`.
pub(super) fn sql(
    section: &Section<'_>,
    call: Option<String>,
    url: Option<&SecretText>,
) -> Option<HandlerKind> {
    let call = call?;
    let Some(url) = url else {
        return Some(HandlerKind::Sql { call });
    };
    match HandlerKind::sql_elsewhere(call, url.expose()) {
        Ok(kind) => Some(kind),
        Err(error) => {
            section.error("database", error.to_string());
            None
        }
    }
}

/// The URL of a `sql` handler's own database.
pub(super) fn database(section: &Section<'_>, vault: Vault<'_>) -> Option<SecretText> {
    let written = section.text("database")?;
    match vault.resolve(written) {
        Ok(url) if url.expose().trim().is_empty() => {
            section.error(
                "database",
                "`database` is empty: write postgresql://user@host/database, or leave it out for a function in oncehook's own",
            );
            None
        }
        Ok(url) => Some(url),
        Err(message) => {
            section.error("database", format!("`database`: {message}"));
            None
        }
    }
}

pub(super) fn call(section: &Section<'_>, call: Option<&str>) -> Option<String> {
    let Some(call) = call else {
        if !section.has("call") {
            section.error(
                "call",
                "`call` is missing: the function to call, such as \"app.record_payment\"",
            );
        }
        return None;
    };
    match rules::check_call(call) {
        Ok(()) => Some(call.to_owned()),
        Err(error) => {
            section.error("call", error.to_string());
            None
        }
    }
}

pub(super) fn http(
    section: &Section<'_>,
    probe: Option<HttpProbe>,
    vault: Vault<'_>,
    now: Timestamp,
) -> Option<HttpTarget> {
    let on_unknown = on_unknown(section, probe);
    let url =
        section
            .required("url", "where to post to")
            .and_then(|url| match rules::check_url(url) {
                Ok(()) => Some(url.to_owned()),
                Err(message) => {
                    section.error("url", format!("`url` {message}"));
                    None
                }
            });
    // Ours are Standard Webhooks signatures: that preset knows what a usable secret is.
    let signer = provider::build("standard-webhooks", &Options::default()).ok();
    let written = secret::read_all(section, vault, signer.as_deref(), now);
    if !written.is_empty() && !written.iter().any(|labelled| labelled.secret.alive(now)) {
        section.error(
            "secrets",
            "every secret has ended: calls would go out unsigned; add one that lives",
        );
    }
    let secrets: Vec<_> = written
        .into_iter()
        .filter(|labelled| labelled.secret.alive(now))
        .map(|labelled| {
            if let Err(why) = rules::check_signs(&labelled.text) {
                section.error(
                    "secrets",
                    format!("secret {:?} {why}", labelled.secret.label),
                );
            }
            (labelled.secret.label, labelled.text)
        })
        .collect();
    Some(HttpTarget {
        url: url?,
        secrets,
        on_unknown: on_unknown?,
    })
}

/// `on_unknown` has no default: only the user knows whether the receiver may see a call twice.
fn on_unknown(section: &Section<'_>, probe: Option<HttpProbe>) -> Option<HttpUnknown> {
    section.required(
        "on_unknown",
        "write on_unknown = \"retry\" if the receiver honours the Idempotency-Key header, so that a call whose answer was lost can be sent again; \"probe\" if it can be asked what became of a key; \"hold\" if neither, and a person decides",
    )?;
    let word = section.word("on_unknown", &[("retry", 0), ("probe", 1), ("hold", 2)])?;
    if word != 1 && section.has("probe") {
        section.error("probe", "belongs to on_unknown = \"probe\"");
    }
    match word {
        0 => Some(HttpUnknown::Retry),
        1 => {
            if !section.has("probe") {
                section.error(
                    "on_unknown",
                    "on_unknown = \"probe\" needs to know whom to ask: write probe = { url = \"https://../by-key/{effect_key}\" }",
                );
            }
            probe.map(HttpUnknown::Probe)
        }
        _ => Some(HttpUnknown::Hold),
    }
}

/// How and when the receiver is asked about a call.
pub(super) fn probe(section: &Section<'_>) -> (Option<HttpProbe>, ProbeSchedule) {
    let Some(below) = section.below("probe", format!("{}, probe", section.place)) else {
        return (None, ProbeSchedule::default());
    };
    let url = below
        .required("url", "whom to ask; {effect_key} stands for the key")
        .and_then(|url| match rules::check_probe_url(url) {
            Ok(()) => Some(url.to_owned()),
            Err(message) => {
                below.error("url", format!("`url` {message}"));
                None
            }
        });
    let post = below.word("method", &[("GET", false), ("POST", true)]);
    let not_found = below.word("not_found", &[("unknown", false), ("absent", true)]);
    let schedule = match below.texts("after") {
        None => ProbeSchedule::default(),
        Some(times) => times
            .iter()
            .map(|(text, _)| units::duration(text).ok())
            .collect::<Option<Vec<_>>>()
            .and_then(ProbeSchedule::new)
            .unwrap_or_else(|| {
                below.error(
                    "after",
                    format!(
                        "`after` must be 1 to {} durations, each longer than the one before, such as [\"5s\", \"30s\", \"2m\"]",
                        ProbeSchedule::PROBES_MAX
                    ),
                );
                ProbeSchedule::default()
            }),
    };
    below.finish();
    let probe = url.map(|url| HttpProbe {
        url,
        post: post.unwrap_or(false),
        not_found_is_absent: not_found.unwrap_or(false),
    });
    (probe, schedule)
}
