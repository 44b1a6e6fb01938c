//! `[[handler]]`: what reacts to an event.

use std::time::Duration;

use jiff::Timestamp;

use crate::dispatch::{HandlerKind, HandlerSpec, HttpProbe, HttpTarget, HttpUnknown};
use crate::domain::{Pattern, Policy, ProbeSchedule, RetryPolicy};
use crate::provider::{self, Options};

use super::secret::{self, Vault};
use super::section::Section;
use super::source::{name, was};
use super::units;

/// Longest run of one delivery unless said otherwise.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a claim of a `sql` handler holds.
pub(super) const LEASE_SQL: Duration = Duration::from_secs(30);
/// Longest time-out. PostgreSQL's own ends at 24 days, beyond which no transaction would begin.
const TIMEOUT_MAX: Duration = Duration::from_hours(24);

/// What the lease of a call outlasts its timeout by, unless said otherwise.
pub(super) const LEASE_BEYOND_TIMEOUT: Duration = Duration::from_mins(1);
/// The least it must outlast it by: the answer has to be written, and clocks of nodes differ.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// Deliveries settled per transaction.
pub(super) const BATCH: u16 = 50;
/// Calls in flight per node.
pub(super) const CONCURRENCY: u16 = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sql,
    Http,
}

/// Reads every `[[handler]]`.
pub(super) fn read_all(root: &Section<'_>, vault: Vault<'_>, now: Timestamp) -> Vec<HandlerSpec> {
    let mut names: Vec<String> = Vec::new();
    let mut handlers = Vec::new();
    for mut section in root.list("handler", "[[handler]]") {
        let name = name(&mut section, "handler", &mut names);
        let handler = read(&section, name, vault, now);
        section.finish();
        handlers.extend(handler);
    }
    handlers
}

fn read(
    section: &Section<'_>,
    name: Option<String>,
    vault: Vault<'_>,
    now: Timestamp,
) -> Option<HandlerSpec> {
    let kind_given = section.required("kind", "\"sql\" or \"http\"").is_some();
    let kind = kind_given
        .then(|| section.word("kind", &[("sql", Kind::Sql), ("http", Kind::Http)]))
        .flatten();
    let events = events(section);
    let timeout = section.positive("timeout");
    if timeout.is_some_and(|timeout| timeout > TIMEOUT_MAX) {
        section.error(
            "timeout",
            format!(
                "`timeout` must not be longer than {}",
                units::show_duration(TIMEOUT_MAX)
            ),
        );
    }
    let lease = section.positive("lease");
    let policy = policy(section);
    let was = was(section, name.as_deref());
    let sql_only = (
        section.text("call"),
        section
            .integer("batch", &(1..=1_000))
            .and_then(|n| u16::try_from(n).ok()),
    );
    let concurrency = section
        .integer("concurrency", &(1..=1_024))
        .and_then(|n| u16::try_from(n).ok());
    let (probe, probes) = probe(section);
    let target = match kind? {
        Kind::Sql => {
            section.refuse(
                &["url", "secrets", "on_unknown", "probe", "concurrency"],
                "belongs to kind = \"http\", not to \"sql\"",
            );
            call(section, sql_only.0).map(|call| HandlerKind::Sql { call })
        }
        Kind::Http => {
            section.refuse(
                &["call", "batch"],
                "belongs to kind = \"sql\", not to \"http\"",
            );
            http(section, probe, vault, now).map(HandlerKind::Http)
        }
    };
    let timeout = timeout.unwrap_or(TIMEOUT);
    let lease = lease.unwrap_or(match kind? {
        Kind::Sql => LEASE_SQL,
        Kind::Http => timeout + LEASE_BEYOND_TIMEOUT,
    });
    if kind == Some(Kind::Http) && lease < timeout + LEASE_MARGIN {
        section.error(
            "lease",
            format!(
                "`lease` ({}) must outlast `timeout` ({}) by {} or more: a call whose lease has ended would be sent again while it still runs; leave it out for timeout + {}",
                units::show_duration(lease),
                units::show_duration(timeout),
                units::show_duration(LEASE_MARGIN),
                units::show_duration(LEASE_BEYOND_TIMEOUT),
            ),
        );
    }
    Some(HandlerSpec {
        name: name?,
        was,
        events,
        kind: target?,
        policy,
        timeout,
        lease,
        batch: sql_only.1.unwrap_or(BATCH),
        concurrency: concurrency.unwrap_or(CONCURRENCY),
        probes,
    })
}

fn events(section: &Section<'_>) -> Vec<Pattern> {
    if !section.has("events") {
        section.error(
            "events",
            "`events` is missing: write events = [\"source:type\"], for example [\"stripe-main:payment_intent.*\"] or [\"*:*\"]",
        );
    }
    let Some(written) = section.texts("events") else {
        return Vec::new();
    };
    if written.is_empty() {
        section.error("events", "`events` is empty: this handler would never run");
    }
    written
        .into_iter()
        .filter_map(|(text, origin)| match Pattern::parse(text) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                section
                    .problems()
                    .error(&origin, &section.place, format!("`events`: {error}"));
                None
            }
        })
        .collect()
}

fn policy(section: &Section<'_>) -> Policy {
    let defaults = Policy::default();
    let crashes = section
        .integer("crashes", &(1..=100))
        .and_then(|n| i16::try_from(n).ok())
        .unwrap_or(defaults.crashes);
    let mut retry = RetryPolicy::default();
    if let Some(below) = section.below("retry", format!("{}, retry", section.place)) {
        retry = RetryPolicy {
            span: below.duration("for").unwrap_or(retry.span),
            first: below.positive("first").unwrap_or(retry.first),
            max: below.positive("max").unwrap_or(retry.max),
        };
        if retry.first > retry.max {
            below.error("first", "`first` must not be longer than `max`");
        }
        below.finish();
    }
    Policy { retry, crashes }
}

fn call(section: &Section<'_>, call: Option<&str>) -> Option<String> {
    let Some(call) = call else {
        if !section.has("call") {
            section.error(
                "call",
                "`call` is missing: the function to call, such as \"app.record_payment\"",
            );
        }
        return None;
    };
    let plain = |part: &str| {
        (1..=63).contains(&part.len())
            && part.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    match call.split_once('.') {
        Some((schema, function)) if plain(schema) && plain(function) => Some(call.to_owned()),
        _ => {
            section.error(
                "call",
                format!(
                    "`call` is {call:?}, but must be schema.function in lower case (a-z, 0-9, _), such as \"app.record_payment\""
                ),
            );
            None
        }
    }
}

fn http(
    section: &Section<'_>,
    probe: Option<HttpProbe>,
    vault: Vault<'_>,
    now: Timestamp,
) -> Option<HttpTarget> {
    let on_unknown = on_unknown(section, probe);
    let url = section
        .required("url", "where to post to")
        .and_then(|url| match check_url(url) {
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
            if labelled.text.expose().starts_with("whpk_") {
                section.error(
                    "secrets",
                    format!(
                        "secret {:?} is a public key (whpk_): it cannot sign; use a whsec_ secret",
                        labelled.secret.label
                    ),
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
fn probe(section: &Section<'_>) -> (Option<HttpProbe>, ProbeSchedule) {
    let Some(below) = section.below("probe", format!("{}, probe", section.place)) else {
        return (None, ProbeSchedule::default());
    };
    let url = below
        .required("url", "whom to ask; {effect_key} stands for the key")
        .and_then(|url| match check_probe_url(url) {
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

/// As [`check_url`], with the key's place filled.
fn check_probe_url(text: &str) -> Result<(), String> {
    let filled = text.replace("{effect_key}", "ohk_0");
    if filled.contains(['{', '}']) {
        return Err("knows {effect_key} only".to_owned());
    }
    check_url(&filled)
}

/// Whether a text is a URL we can post to.
pub(super) fn check_url(text: &str) -> Result<(), String> {
    // The value is not repeated: URLs may carry a password.
    let url = reqwest::Url::parse(text)
        .map_err(|error| format!("is not a URL ({error}): write http://.. or https://.."))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user name or password".to_owned());
    }
    if url.fragment().is_some() {
        return Err("must not hold a fragment (#..)".to_owned());
    }
    Ok(())
}
