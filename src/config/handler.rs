//! `[[handler]]`: what reacts to an event.

use std::time::Duration;

use jiff::Timestamp;

use crate::dispatch::rules::{self, LEASE_BEYOND_TIMEOUT, Said};
use crate::dispatch::{BreakerPolicy, HandlerKind, HandlerSpec, RETRY_SHARE, Settle, SpecError};
use crate::domain::late::{Place, Reading, Word};
use crate::domain::operation::OperationSpec;
use crate::domain::{
    Cap, LaneBy, OnDead, OnUncertain, Pattern, Policy, Priorities, Priority, RetryPolicy, VersionBy,
};

use super::problem::Origin;
use super::secret::Vault;
use super::section::Section;
use super::source::{name, was};
use super::{target, units};

/// Longest run of one delivery unless said otherwise.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a claim of a `sql` handler holds.
pub(super) const LEASE_SQL: Duration = Duration::from_secs(30);
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
    Settle,
}

/// Handlers that settle the calls of others, which are checked when all of them are read.
pub(super) struct Settling {
    /// Name, and where its `of` and itself are written.
    handlers: Vec<(String, Origin, String)>,
    /// Of every handler, also of those that could not be read.
    names: Vec<String>,
}

impl Settling {
    /// Says what is wrong with whose calls they settle. `others`: the names of every operation.
    pub(super) fn check(self, root: &Section<'_>, all: &[HandlerSpec], others: &[String]) {
        for (name, origin, place) in self.handlers {
            let spec = all.iter().find(|spec| spec.name == name);
            // What could not be read is not missing.
            let problem = spec
                .and_then(|spec| rules::problem_of(spec, all))
                .filter(|problem| match problem {
                    SpecError::OfNobody(of) => !self.names.contains(of) && !others.contains(of),
                    _ => true,
                });
            if let Some(problem) = problem {
                root.problems().error(&origin, &place, problem.to_string());
            }
        }
    }
}

/// Reads every `[[handler]]`.
pub(super) fn read_all(
    root: &Section<'_>,
    vault: Vault<'_>,
    now: Timestamp,
) -> (Vec<HandlerSpec>, Settling) {
    let mut names: Vec<String> = Vec::new();
    let mut handlers = Vec::new();
    let mut settling = Vec::new();
    for mut section in root.list("handler", "[[handler]]") {
        let name = name(&mut section, "handler", &mut names);
        let events = events(&section);
        let handler = read(&section, name, events.as_deref(), None, vault, now);
        if let Some(spec) = &handler
            && matches!(spec.kind, HandlerKind::Settle(_))
        {
            settling.push((
                spec.name.clone(),
                section.origin_of("of"),
                section.place.clone(),
            ));
        }
        section.finish();
        handlers.extend(handler);
    }
    let settling = Settling {
        handlers: settling,
        names,
    };
    (handlers, settling)
}

/// Which calls a `settle` handler settles, and how it reads what its events say of them.
fn settles(section: &Section<'_>, kind: Option<Kind>) -> Option<Settle> {
    const KEYS: [&str; 5] = ["of", "effect_key", "result", "resource", "external_id"];
    if kind != Some(Kind::Settle) {
        section.refuse(&KEYS, "belongs to kind = \"settle\"");
        return None;
    }
    let place = |key| match Place::parse(section.text(key)?) {
        Ok(place) => Some(place),
        Err(error) => {
            section.error(key, format!("`{key}`: {error}"));
            None
        }
    };
    let of = section.required("of", "the handler whose calls it settles");
    let said = section.required("result", "what its events say: \"succeeded\" or \"failed\"");
    let words = [("succeeded", Word::Succeeded), ("failed", Word::Failed)];
    let word = said.and_then(|_| section.word("result", &words));
    let named = section.required(
        "effect_key",
        "where the event has the effect key of the call, such as \"json:/data/object/metadata/oncehook\"",
    );
    let reading = Reading {
        effect_key: named.and_then(|_| place("effect_key"))?,
        resource: place("resource"),
        external_id: place("external_id"),
        word: word?,
    };
    Some(Settle {
        of: of?.to_owned(),
        reading,
    })
}

/// The handler of an operation: it takes no events, the engine leads the operation's to it.
pub(super) fn of_operation(
    section: &Section<'_>,
    name: Option<String>,
    operation: OperationSpec,
    vault: Vault<'_>,
    now: Timestamp,
) -> Option<HandlerSpec> {
    read(section, name, Some(&[]), Some(operation), vault, now)
}

fn read(
    section: &Section<'_>,
    name: Option<String>,
    events: Option<&[Pattern]>,
    operation: Option<OperationSpec>,
    vault: Vault<'_>,
    now: Timestamp,
) -> Option<HandlerSpec> {
    let kind_given = section
        .required("kind", "\"sql\", \"http\" or \"settle\"")
        .is_some();
    let kind = kind_given
        .then(|| {
            section.word(
                "kind",
                &[
                    ("sql", Kind::Sql),
                    ("http", Kind::Http),
                    ("settle", Kind::Settle),
                ],
            )
        })
        .flatten()
        .map(|kind| match kind {
            Kind::Sql if section.has("database") => Kind::SqlElsewhere,
            kind => kind,
        });
    let timeout = section.positive("timeout");
    let lease = section.positive("lease");
    let lane = lane(section);
    let apply_if_newer = apply_if_newer(section);
    let (policy, retry_share) = policy(section, kind);
    let breaker = breaker(section);
    let priorities = priorities(section);
    let cap = cap(section);
    let was = was(section, name.as_deref());
    let sql_only = (
        section.text("call"),
        section
            .integer("batch", &rules::BATCH)
            .and_then(|n| u16::try_from(n).ok()),
    );
    let concurrency = section
        .integer("concurrency", &rules::CONCURRENCY)
        .and_then(|n| u16::try_from(n).ok());
    let (probe, probes) = target::probe(section);
    let on_uncertain = on_uncertain(section);
    let database = target::database(section, vault);
    let settle = settles(section, kind);
    refuse_others(section, kind?);
    let target = match kind? {
        Kind::Sql => target::sql(section, target::call(section, sql_only.0), None),
        Kind::SqlElsewhere => {
            let call = target::call(section, sql_only.0);
            database.and_then(|url| target::sql(section, call, Some(&url)))
        }
        Kind::Http => target::http(section, probe, vault, now).map(HandlerKind::Http),
        Kind::Settle => settle.map(HandlerKind::Settle),
    };
    let timeout = timeout.unwrap_or(TIMEOUT);
    let lease = lease.unwrap_or(match kind? {
        Kind::Sql | Kind::Settle => LEASE_SQL,
        Kind::SqlElsewhere | Kind::Http => timeout + LEASE_BEYOND_TIMEOUT,
    });
    let spec = HandlerSpec {
        name: name?,
        was,
        events: events.unwrap_or_default().to_vec(),
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
        operation,
    };
    let said = Said {
        lane_on_dead: section.has("lane_on_dead"),
        lane_on_uncertain: section.has("lane_on_uncertain"),
    };
    // What could not be read is not missing, and what is wrong with it has been said.
    let lane_unread = section.has("lane") && spec.lane.is_none();
    for problem in spec.problems_of_settings(said) {
        let unread = match problem {
            SpecError::NoEvents => events.is_none(),
            SpecError::NoLane(_) | SpecError::NewerWithoutLane => lane_unread,
            _ => false,
        };
        if !unread {
            section.error(problem.setting(), problem.to_string());
        }
    }
    Some(spec)
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
        Kind::Settle => section.refuse(
            &[
                "call",
                "database",
                "url",
                "secrets",
                "on_unknown",
                "probe",
                "concurrency",
                "breaker",
            ],
            "belongs to kind = \"sql\" or \"http\", not to \"settle\", which calls nothing",
        ),
    }
}

/// `None`: what is wrong has been said.
fn events(section: &Section<'_>) -> Option<Vec<Pattern>> {
    if !section.has("events") {
        section.error(
            "events",
            "`events` is missing: write events = [\"source:type\"], for example [\"stripe-main:payment_intent.*\"] or [\"*:*\"]",
        );
    }
    let written = section.texts("events")?;
    let count = written.len();
    let patterns: Vec<_> = written
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
        .collect();
    (patterns.len() == count).then_some(patterns)
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
        .integer("max_in_flight", &rules::IN_FLIGHT)
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
    let percent = below.integer("failures", &rules::BREAKER_FAILURES);
    let minimum = below.integer("minimum", &rules::BREAKER_MINIMUM);
    let probes = below.integer("probes", &rules::BREAKER_PROBES);
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
    below.finish();
    Some(policy)
}

/// What to do about failures, and the share of repetitions among the first tries.
fn policy(section: &Section<'_>, kind: Option<Kind>) -> (Policy, u16) {
    let defaults = Policy::default();
    let crashes = section
        .integer("crashes", &rules::CRASHES)
        .and_then(|n| i16::try_from(n).ok())
        .unwrap_or(defaults.crashes);
    let mut share = RETRY_SHARE;
    let retry = budget(section, "retry", defaults.retry, |below| {
        if matches!(kind, Some(Kind::Sql | Kind::Settle)) {
            below.refuse(
                &["share"],
                "belongs to kind = \"http\": it keeps repetitions from a receiver that fails",
            );
        }
        if let Some(percent) = below.integer("share", &rules::SHARE) {
            share = u16::try_from(percent).unwrap_or(RETRY_SHARE);
        }
    });
    let otherwise = match kind {
        Some(Kind::Settle) => RetryPolicy::LATE,
        _ => defaults.not_yet,
    };
    let not_yet = budget(section, "not_yet", otherwise, |_| ());
    let on_dead = section.word(
        "lane_on_dead",
        &[("skip", OnDead::Skip), ("hold", OnDead::Hold)],
    );
    let policy = Policy {
        retry,
        not_yet,
        crashes,
        on_dead: on_dead.unwrap_or_default(),
        on_uncertain: defaults.on_uncertain,
    };
    (policy, share)
}

/// What a lane does while the result of its first delivery's call is not known.
fn on_uncertain(section: &Section<'_>) -> OnUncertain {
    let words = [("wait", OnUncertain::Wait), ("skip", OnUncertain::Skip)];
    section
        .word("lane_on_uncertain", &words)
        .unwrap_or_default()
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
    below.finish();
    budget
}
