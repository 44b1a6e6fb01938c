//! `[[handler]]`: what reacts to an event.

use std::time::Duration;

use jiff::Timestamp;

use crate::dispatch::{BreakerPolicy, HandlerKind, HandlerSpec, HttpTarget, RETRY_SHARE};
use crate::domain::{
    Cap, LaneBy, OnDead, Pattern, Policy, Priorities, Priority, RetryPolicy, VersionBy,
};
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
    let lane = lane(section);
    let apply_if_newer = apply_if_newer(section);
    let (policy, retry_share) = policy(section, kind, lane.is_some());
    let breaker = breaker(section);
    let priorities = priorities(section);
    let cap = cap(section);
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
    let target = match kind? {
        Kind::Sql => {
            section.refuse(
                &["url", "secrets", "on_unknown", "concurrency"],
                "belongs to kind = \"http\", not to \"sql\"",
            );
            section.refuse(
                &["breaker"],
                "belongs to kind = \"http\": a sql function runs in this database, and what stops one stops the other; `handlers pause` holds a handler back by hand",
            );
            call(section, sql_only.0).map(|call| HandlerKind::Sql { call })
        }
        Kind::Http => {
            section.refuse(
                &["call", "batch", "not_yet"],
                "belongs to kind = \"sql\", not to \"http\"",
            );
            http(section, vault, now).map(HandlerKind::Http)
        }
    };
    if kind == Some(Kind::Http) && apply_if_newer.is_some() && lane != Some(LaneBy::Entity) {
        section.error(
            "apply_if_newer",
            "`apply_if_newer` of an \"http\" handler needs lane = \"entity\": else an older and a newer event could be on their way at once",
        );
    }
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
        lane,
        apply_if_newer,
        policy,
        timeout,
        lease,
        batch: sql_only.1.unwrap_or(BATCH),
        concurrency: concurrency.unwrap_or(CONCURRENCY),
        priorities,
        cap,
        breaker,
        retry_share,
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

fn lane(section: &Section<'_>) -> Option<LaneBy> {
    let text = section.text("lane")?;
    match LaneBy::parse(text) {
        Ok(by) => Some(by),
        Err(error) => {
            section.error("lane", format!("`lane`: {error}"));
            None
        }
    }
}

fn apply_if_newer(section: &Section<'_>) -> Option<VersionBy> {
    let text = section.text("apply_if_newer")?;
    match VersionBy::parse(text) {
        Ok(by) => Some(by),
        Err(error) => {
            section.error("apply_if_newer", format!("`apply_if_newer`: {error}"));
            None
        }
    }
}

/// One word for all events, or patterns for those that are not normal.
fn priorities(section: &Section<'_>) -> Priorities {
    const WORDS: [(&str, Priority); 3] = [
        ("high", Priority::High),
        ("normal", Priority::Normal),
        ("low", Priority::Low),
    ];
    if !section.is_table("priority") {
        let all = section.word("priority", &WORDS).unwrap_or_default();
        return Priorities::all(all);
    }
    let Some(below) = section.below("priority", format!("{}, priority", section.place)) else {
        return Priorities::default();
    };
    let mut named = Vec::new();
    for (key, priority) in WORDS {
        for (text, origin) in below.texts(key).unwrap_or_default() {
            match Pattern::parse(text) {
                Ok(pattern) => named.push((pattern, priority)),
                Err(error) => {
                    let message = format!("`{key}`: {error}");
                    below.problems().error(&origin, &below.place, message);
                }
            }
        }
    }
    if named.is_empty() {
        section.error(
            "priority",
            "`priority` names nothing: write priority = \"high\" for every event of the handler, or priority = { high = [\"source:type\"], low = [..] }",
        );
    }
    below.finish();
    Priorities {
        rest: Priority::Normal,
        named,
    }
}

fn cap(section: &Section<'_>) -> Cap {
    let in_flight = section
        .integer("max_in_flight", &(1..=100_000))
        .and_then(|n| u32::try_from(n).ok());
    Cap {
        in_flight,
        rate: section.parsed("rate", units::rate),
    }
}

/// When the receiver is left alone; `false`: never.
fn breaker(section: &Section<'_>) -> Option<BreakerPolicy> {
    let defaults = BreakerPolicy::default();
    if !section.has("breaker") {
        section.value("breaker");
        return Some(defaults);
    }
    if !section.is_table("breaker") {
        if section.flag("breaker") == Some(true) {
            return Some(defaults);
        }
        return None;
    }
    let below = section.below("breaker", format!("{}, breaker", section.place))?;
    let percent = below.integer("failures", &(1..=100));
    let minimum = below.integer("minimum", &(1..=100_000));
    let probes = below.integer("probes", &(1..=3));
    let policy = BreakerPolicy {
        failures: percent
            .and_then(|n| u8::try_from(n).ok())
            .unwrap_or(defaults.failures),
        minimum: minimum
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(defaults.minimum),
        window: below.positive("window").unwrap_or(defaults.window),
        first: below.positive("first").unwrap_or(defaults.first),
        max: below.positive("max").unwrap_or(defaults.max),
        probes: probes
            .and_then(|n| u16::try_from(n).ok())
            .unwrap_or(defaults.probes),
    };
    if policy.first > policy.max {
        below.error("first", "`first` must not be longer than `max`");
    }
    below.finish();
    Some(policy)
}

/// What to do about failures, and the share of repetitions among the first tries.
fn policy(section: &Section<'_>, kind: Option<Kind>, laned: bool) -> (Policy, u16) {
    let defaults = Policy::default();
    let crashes = section
        .integer("crashes", &(1..=100))
        .and_then(|n| i16::try_from(n).ok())
        .unwrap_or(defaults.crashes);
    let mut share = RETRY_SHARE;
    let retry = budget(section, "retry", defaults.retry, |below| {
        if kind == Some(Kind::Sql) {
            below.refuse(
                &["share"],
                "belongs to kind = \"http\": it keeps repetitions from a receiver that fails",
            );
        }
        if let Some(percent) = below.integer("share", &(1..=10_000)) {
            share = u16::try_from(percent).unwrap_or(RETRY_SHARE);
        }
    });
    let not_yet = budget(section, "not_yet", defaults.not_yet, |_| ());
    let on_dead = section.word(
        "lane_on_dead",
        &[("skip", OnDead::Skip), ("hold", OnDead::Hold)],
    );
    if on_dead.is_some() && !laned && !section.has("lane") {
        section.error(
            "lane_on_dead",
            "`lane_on_dead` says what a lane does, and this handler has none: write `lane`, for example lane = \"entity\"",
        );
    }
    let policy = Policy {
        retry,
        not_yet,
        crashes,
        on_dead: on_dead.unwrap_or_default(),
    };
    (policy, share)
}

/// `{ for = "3d", first = "5s", max = "6h" }`; what is left out is as in `otherwise`. `further` reads
/// what else may stand there.
fn budget<'s>(
    section: &Section<'s>,
    key: &'static str,
    otherwise: RetryPolicy,
    further: impl FnOnce(&Section<'s>),
) -> RetryPolicy {
    let Some(below) = section.below(key, format!("{}, {key}", section.place)) else {
        return otherwise;
    };
    let budget = RetryPolicy {
        span: below.duration("for").unwrap_or(otherwise.span),
        first: below.positive("first").unwrap_or(otherwise.first),
        max: below.positive("max").unwrap_or(otherwise.max),
    };
    further(&below);
    if budget.first > budget.max {
        below.error("first", "`first` must not be longer than `max`");
    }
    below.finish();
    budget
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

fn http(section: &Section<'_>, vault: Vault<'_>, now: Timestamp) -> Option<HttpTarget> {
    on_unknown(section);
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
    Some(HttpTarget { url: url?, secrets })
}

/// `on_unknown` has no default: only the user knows whether the receiver may see a call twice.
fn on_unknown(section: &Section<'_>) {
    match section.required(
        "on_unknown",
        "write on_unknown = \"retry\" if the receiver honours the Idempotency-Key header, so that a call whose answer was lost can be sent again",
    ) {
        None | Some("retry") => {}
        Some("probe" | "hold") => section.error(
            "on_unknown",
            "`on_unknown` = \"probe\" and \"hold\" come with a later version; this one knows only \"retry\" (the receiver honours Idempotency-Key)",
        ),
        Some(other) => section.error(
            "on_unknown",
            format!("`on_unknown` is {other:?}, but this version knows only \"retry\""),
        ),
    }
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
