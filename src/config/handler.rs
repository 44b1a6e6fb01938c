//! `[[handler]]`: what reacts to an event.

use std::time::Duration;

use jiff::Timestamp;

use crate::dispatch::{BreakerPolicy, HandlerKind, HandlerSpec, HttpUnknown, RETRY_SHARE};
use crate::domain::{
    Cap, LaneBy, OnDead, OnUncertain, Pattern, Policy, Priorities, Priority, RetryPolicy, VersionBy,
};

use super::secret::Vault;
use super::section::Section;
use super::source::{name, was};
use super::{target, units};

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
    /// With a database of its own.
    SqlElsewhere,
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
        .flatten()
        .map(|kind| match kind {
            Kind::Sql if section.has("database") => Kind::SqlElsewhere,
            kind => kind,
        });
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
    let (probe, probes) = target::probe(section);
    let on_uncertain = on_uncertain(section, kind);
    let database = target::database(section, vault);
    refuse_others(section, kind?);
    let target = match kind? {
        Kind::Sql => target::sql(section, target::call(section, sql_only.0), None),
        Kind::SqlElsewhere => {
            let call = target::call(section, sql_only.0);
            database.and_then(|url| target::sql(section, call, Some(&url)))
        }
        Kind::Http => target::http(section, probe, vault, now).map(HandlerKind::Http),
    };
    check_lane(section, target.as_ref(), lane.as_ref());
    let timeout = timeout.unwrap_or(TIMEOUT);
    let lease = lease.unwrap_or(match kind? {
        Kind::Sql => LEASE_SQL,
        Kind::SqlElsewhere | Kind::Http => timeout + LEASE_BEYOND_TIMEOUT,
    });
    if kind != Some(Kind::Sql) && lease < timeout + LEASE_MARGIN {
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
        policy: Policy {
            on_uncertain,
            ..policy
        },
        timeout,
        lease,
        batch: sql_only.1.unwrap_or(BATCH),
        concurrency: concurrency.unwrap_or(CONCURRENCY),
        priorities,
        cap,
        breaker,
        retry_share,
        probes,
    })
}

/// Options of the other kinds.
fn refuse_others(section: &Section<'_>, kind: Kind) {
    match kind {
        Kind::Sql => {
            section.refuse(
                &["url", "secrets", "on_unknown", "probe"],
                "belongs to kind = \"http\", not to \"sql\"",
            );
            section.refuse(
                &["concurrency"],
                "belongs to kind = \"http\", or to a \"sql\" handler with a `database` of its own",
            );
            section.refuse(
                &["breaker"],
                "belongs to kind = \"http\", or to a \"sql\" handler with a `database` of its own: a function in this database stops with it; `handlers pause` holds a handler back by hand",
            );
        }
        Kind::SqlElsewhere => {
            section.refuse(
                &["url", "secrets", "on_unknown", "probe"],
                "belongs to kind = \"http\", not to \"sql\": what became of a lost try stands in the ledger of its `database`",
            );
            section.refuse(
                &["batch"],
                "belongs to a \"sql\" handler without a `database` of its own: there each event is a transaction; `concurrency` says how many at once",
            );
        }
        Kind::Http => section.refuse(
            &["call", "batch", "not_yet", "database"],
            "belongs to kind = \"sql\", not to \"http\"",
        ),
    }
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
        on_uncertain: defaults.on_uncertain,
    };
    (policy, share)
}

/// What a handler's lane must be for its other settings.
fn check_lane(section: &Section<'_>, target: Option<&HandlerKind>, lane: Option<&LaneBy>) {
    let is_call = matches!(
        target,
        Some(HandlerKind::Http(_) | HandlerKind::SqlElsewhere { .. })
    );
    if is_call && section.has("apply_if_newer") && lane != Some(&LaneBy::Entity) {
        section.error(
            "apply_if_newer",
            "`apply_if_newer` of an \"http\" handler, or of one with a `database` of its own, needs lane = \"entity\": else an older and a newer event could be on their way at once",
        );
    }
    let Some(HandlerKind::Http(http)) = target else {
        return;
    };
    if section.has("lane_on_uncertain") && matches!(http.on_unknown, HttpUnknown::Retry) {
        section.error(
            "lane_on_uncertain",
            "`lane_on_uncertain` belongs to on_unknown = \"probe\" or \"hold\": with \"retry\" a call whose answer is lost is sent again, and its lane waits for that",
        );
    }
}

/// What a lane does while the result of its first delivery's call is not known.
fn on_uncertain(section: &Section<'_>, kind: Option<Kind>) -> OnUncertain {
    let words = [("wait", OnUncertain::Wait), ("skip", OnUncertain::Skip)];
    let Some(given) = section.word("lane_on_uncertain", &words) else {
        return OnUncertain::default();
    };
    if !section.has("lane") {
        section.error(
            "lane_on_uncertain",
            "`lane_on_uncertain` says what a lane does, and this handler has none: write `lane`, for example lane = \"entity\"",
        );
    }
    if matches!(kind, Some(Kind::Sql | Kind::SqlElsewhere)) {
        section.refuse(
            &["lane_on_uncertain"],
            "belongs to kind = \"http\": what a sql function did in a transaction that is lost was rolled back, or stands in the ledger of its `database`, so its result is never unknown",
        );
    }
    if given == OnUncertain::Skip && section.has("apply_if_newer") {
        section.error(
            "lane_on_uncertain",
            "lane_on_uncertain = \"skip\" lets a later event overtake one that may be applied still, which `apply_if_newer` could not see: leave one of them out",
        );
    }
    given
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
