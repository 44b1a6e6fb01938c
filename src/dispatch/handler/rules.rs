//! What a handler cannot be run with.
//!
//! One place for both ways: the configuration says where in the file it stands, the engine refuses a
//! handler that was made in code. Pure.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::domain::json::valid_pointer;
use crate::domain::operation::{OperationSpec, may_be_listed};
use crate::domain::{LaneBy, OnDead, OnUncertain, OnUnknown, RetryPolicy, SecretText};
use crate::provider::Provider;

use super::super::flow::BreakerPolicy;
use super::{HandlerKind, HandlerSpec, HttpTarget, HttpUnknown};

/// Longest duration of any setting: ten years. Anything above is a slip of the pen, and stays far from
/// every overflow further on.
pub(crate) const LONGEST: Duration = Duration::from_hours(87_600);
/// Longest time-out. PostgreSQL's own ends at 24 days, beyond which no transaction would begin.
const TIMEOUT_MAX: Duration = Duration::from_hours(24);
/// What the lease of a call outlasts its time-out by, unless said otherwise.
pub(crate) const LEASE_BEYOND_TIMEOUT: Duration = Duration::from_mins(1);
/// The least it must outlast it by: the answer has to be written, and clocks of nodes differ.
const LEASE_MARGIN: Duration = Duration::from_secs(5);

pub(crate) const CRASHES: RangeInclusive<i64> = 1..=100;
pub(crate) const BATCH: RangeInclusive<i64> = 1..=1_000;
pub(crate) const CONCURRENCY: RangeInclusive<i64> = 1..=1_024;
pub(crate) const SHARE: RangeInclusive<i64> = 1..=10_000;
pub(crate) const IN_FLIGHT: RangeInclusive<i64> = 1..=100_000;
pub(crate) const RATE: RangeInclusive<i64> = 1..=1_000_000;
pub(crate) const BREAKER_FAILURES: RangeInclusive<i64> = 1..=100;
pub(crate) const BREAKER_MINIMUM: RangeInclusive<i64> = 1..=100_000;
pub(crate) const BREAKER_PROBES: RangeInclusive<i64> = 1..=3;

/// What is wrong with the settings of a handler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Its name.
    #[error(
        "`name` must have 1 to 64 of the characters a-z, 0-9, - and _: it stands in URLs and metrics"
    )]
    Name,
    /// Another has its name.
    #[error("another of this name exists above: names are unique")]
    NameTaken,
    /// Its former name.
    #[error("`was` must be the former name, other than `name`")]
    Was,
    /// Nobody has the name of the handler whose calls it settles.
    #[error("`of` is {0:?}, but no handler has this name")]
    OfNobody(String),
    /// It is not known of a call of that handler that its result is not known.
    #[error(
        "`of` is {0:?}, but the result of its calls is never unknown: name an \"http\" handler with on_unknown = \"probe\" or \"hold\", or an \"external\" one"
    )]
    OfNeverUncertain(String),
    /// Its former name is still that of another.
    #[error("`was` is {0:?}, but that is still the name of another")]
    WasTaken(String),
    /// It takes nothing.
    #[error("`events` is empty: this handler would never run")]
    NoEvents,
    /// The name of its function.
    #[error(
        "`call` is {0:?}, but must be schema.function in lower case (a-z, 0-9, _), such as \"app.record_payment\""
    )]
    Call(String),
    /// Where it posts to. The text does not hold the URL, which may hold a password.
    #[error("`url` {0}")]
    Url(String),
    /// Where it asks.
    #[error("`probe.url` {0}")]
    ProbeUrl(String),
    /// What it signs with.
    #[error("`secrets`: {0}")]
    Secrets(String),
    /// A duration.
    #[error("`{0}` must be longer than zero")]
    Zero(&'static str),
    /// A duration.
    #[error("`{setting}` must not be longer than {most}")]
    TooLong {
        /// As in the configuration.
        setting: &'static str,
        /// For people.
        most: &'static str,
    },
    /// Two durations, of which the first is the lower bound.
    #[error("`{setting}.first` must not be longer than `{setting}.max`")]
    FirstBeyondMax {
        /// As in the configuration.
        setting: &'static str,
    },
    /// A number.
    #[error("`{setting}` must be a whole number from {least} to {most}")]
    OutOfRange {
        /// As in the configuration.
        setting: &'static str,
        /// The least.
        least: i64,
        /// The most.
        most: i64,
    },
    /// The lease of a call.
    #[error(
        "`lease` ({lease:?}) must outlast `timeout` ({timeout:?}) by {LEASE_MARGIN:?} or more: a call whose lease has ended would be sent again while it still runs; unless said otherwise it is timeout + {LEASE_BEYOND_TIMEOUT:?}"
    )]
    LeaseTooShort {
        /// As given.
        lease: Duration,
        /// As given.
        timeout: Duration,
    },
    /// A setting of lanes without a lane.
    #[error(
        "`{0}` says what a lane does, and this handler has none: write `lane`, for example lane = \"entity\""
    )]
    NoLane(&'static str),
    /// `lane_on_uncertain` of a handler whose work is a transaction.
    #[error(
        "`lane_on_uncertain` belongs to kind = \"http\": what a sql function did in a transaction that is lost was rolled back, or stands in the ledger of its `database`, so its result is never unknown"
    )]
    NeverUncertain,
    /// `lane_on_uncertain` of a handler whose calls are sent again.
    #[error(
        "`lane_on_uncertain` belongs to on_unknown = \"probe\" or \"hold\": with \"retry\" a call whose answer is lost is sent again, and its lane waits for that"
    )]
    SentAgain,
    /// `lane_on_uncertain = "skip"` with `apply_if_newer`.
    #[error(
        "lane_on_uncertain = \"skip\" lets a later event overtake one that may be applied still, which `apply_if_newer` could not see: leave one of them out"
    )]
    SkipAndNewer,
    /// `lane_on_uncertain = "skip"` with `lane_on_dead = "hold"`.
    #[error(
        "lane_on_uncertain = \"skip\" lets a later event overtake one whose call was perhaps not applied, and lane_on_dead = \"hold\" says that none runs whose predecessor did not: leave one of them out"
    )]
    SkipAndHold,
    /// `apply_if_newer` of a handler that makes calls.
    #[error(
        "`apply_if_newer` of a handler that makes calls (\"http\", \"external\", or \"sql\" with a `database` of its own) needs lane = \"entity\": else an older and a newer event could be on their way at once"
    )]
    NewerWithoutLane,
    /// `events` of an operation.
    #[error(
        "`events` belongs to a handler of webhooks: an operation takes what its clients submit, and nothing else"
    )]
    EventsOfOperation,
    /// An operation in another database.
    #[error(
        "an operation cannot have a `database` of its own: its answer commits together with its effect, and the ledger there keeps none; use kind = \"http\", or a function in this database"
    )]
    OperationElsewhere,
    /// An operation that calls nothing.
    #[error(
        "an operation does something itself: kind = \"settle\" belongs to a handler whose events tell of its calls"
    )]
    OperationSettles,
    /// A setting that makes nothing of an operation.
    #[error(
        "`{0}` does not belong to an operation: each of its intents is run, and ends with an answer"
    )]
    NotOfOperation(&'static str),
    /// A JSON Pointer of an operation.
    #[error("`volatile`: {0:?} is not a JSON Pointer (RFC 6901), such as \"/sent_at\"")]
    Volatile(String),
    /// A header that an operation lists.
    #[error(
        "`headers`: {0:?} cannot be stored: write names in lower case, and none that belongs to one message or connection, or is a secret"
    )]
    OperationHeader(String),
    /// How long an operation may be waited for.
    #[error("`wait` must not be longer than `wait_max`")]
    WaitBeyondMax,
}

impl SpecError {
    /// The setting of the configuration that it is about.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Name | Self::NameTaken => "name",
            Self::Was | Self::WasTaken(_) => "was",
            Self::NoEvents | Self::EventsOfOperation => "events",
            Self::Call(_) => "call",
            Self::Url(_) => "url",
            Self::ProbeUrl(_) => "probe",
            Self::Secrets(_) => "secrets",
            Self::Zero(setting)
            | Self::NoLane(setting)
            | Self::TooLong { setting, .. }
            | Self::FirstBeyondMax { setting }
            | Self::OutOfRange { setting, .. } => {
                setting.split_once('.').map_or(setting, |(table, _)| table)
            }
            Self::LeaseTooShort { .. } => "lease",
            Self::OfNobody(_) | Self::OfNeverUncertain(_) => "of",
            Self::NeverUncertain | Self::SentAgain | Self::SkipAndNewer | Self::SkipAndHold => {
                "lane_on_uncertain"
            }
            Self::NewerWithoutLane => "apply_if_newer",
            Self::OperationElsewhere => "database",
            Self::OperationSettles => "kind",
            Self::NotOfOperation(setting) => setting,
            Self::Volatile(_) => "volatile",
            Self::OperationHeader(_) => "headers",
            Self::WaitBeyondMax => "wait",
        }
    }
}

/// Which settings were said, be it their defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Said {
    pub(crate) lane_on_dead: bool,
    pub(crate) lane_on_uncertain: bool,
}

impl Said {
    /// Where only values are known.
    fn by(spec: &HandlerSpec) -> Self {
        Self {
            lane_on_dead: spec.policy.on_dead != OnDead::default(),
            lane_on_uncertain: spec.policy.on_uncertain != OnUncertain::default(),
        }
    }
}

impl HandlerSpec {
    /// What it cannot be run with; empty if nothing. `signer` makes the signatures of `http` calls.
    pub(crate) fn problems(&self, signer: &dyn Provider) -> Vec<SpecError> {
        let mut problems = names(self);
        problems.extend(self.kind.problems(signer));
        problems.extend(self.problems_of_settings(Said::by(self)));
        problems
    }

    /// The same without what its names and its kind are.
    pub(crate) fn problems_of_settings(&self, said: Said) -> Vec<SpecError> {
        let mut problems = numbers(self);
        match &self.operation {
            Some(spec) => problems.extend(operation(self, spec)),
            None if self.events.is_empty() => problems.push(SpecError::NoEvents),
            None => {}
        }
        problems.extend(durations(self));
        if self.kind.makes_calls() && self.lease < self.timeout.saturating_add(LEASE_MARGIN) {
            problems.push(SpecError::LeaseTooShort {
                lease: self.lease,
                timeout: self.timeout,
            });
        }
        problems.extend(lanes(self, said));
        problems
    }
}

impl HandlerKind {
    /// Whether its work leaves our database.
    pub(crate) fn makes_calls(&self) -> bool {
        match self {
            Self::Http(_) | Self::External(_) | Self::SqlElsewhere { .. } => true,
            Self::Sql { .. } | Self::Function(_) | Self::Settle(_) => false,
        }
    }

    fn problems(&self, signer: &dyn Provider) -> Vec<SpecError> {
        match self {
            Self::Sql { call } | Self::SqlElsewhere { call, .. } => {
                check_call(call).err().into_iter().collect()
            }
            Self::Http(target) => http(target, signer),
            Self::Function(_) | Self::External(_) | Self::Settle(_) => Vec::new(),
        }
    }
}

/// Those of a set: the name of the handler and what is wrong.
pub(crate) fn of_all(
    handlers: &[HandlerSpec],
    signer: &dyn Provider,
) -> Option<(String, SpecError)> {
    let mut seen = HashSet::new();
    for spec in handlers {
        let was_taken = spec.was.as_ref().filter(|was| is_taken(was, handlers));
        let taken = (!seen.insert(&spec.name)).then_some(SpecError::NameTaken);
        let first = spec
            .problems(signer)
            .into_iter()
            .chain(taken)
            .chain(was_taken.map(|was| SpecError::WasTaken(was.clone())))
            .chain(problem_of(spec, handlers))
            .next();
        if let Some(problem) = first {
            return Some((spec.name.clone(), problem));
        }
    }
    None
}

/// What is wrong with the handler whose calls it settles.
pub(crate) fn problem_of(spec: &HandlerSpec, handlers: &[HandlerSpec]) -> Option<SpecError> {
    let HandlerKind::Settle(settle) = &spec.kind else {
        return None;
    };
    let of = || settle.of.clone();
    match handlers.iter().find(|other| other.name == settle.of) {
        None => Some(SpecError::OfNobody(of())),
        Some(other) if other.kind.on_unknown() == OnUnknown::Retry => {
            Some(SpecError::OfNeverUncertain(of()))
        }
        Some(_) => None,
    }
}

fn is_taken(name: &str, handlers: &[HandlerSpec]) -> bool {
    handlers.iter().any(|other| other.name == name)
}

/// Whether a text can be the name of a source or a handler.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

fn names(spec: &HandlerSpec) -> Vec<SpecError> {
    let mut problems = Vec::new();
    if !is_name(&spec.name) {
        problems.push(SpecError::Name);
    }
    if let Some(was) = &spec.was {
        problems.extend(check_was(was, Some(&spec.name)).err());
    }
    problems
}

/// Whether a text can be the former name of who has that name now.
pub(crate) fn check_was(was: &str, name: Option<&str>) -> Result<(), SpecError> {
    if is_name(was) && Some(was) != name {
        return Ok(());
    }
    Err(SpecError::Was)
}

fn numbers(spec: &HandlerSpec) -> Vec<SpecError> {
    let mut numbers = vec![("crashes", i64::from(spec.policy.crashes), CRASHES)];
    if spec.kind.makes_calls() {
        numbers.push(("concurrency", spec.concurrency.into(), CONCURRENCY));
        numbers.push(("retry.share", spec.retry_share.into(), SHARE));
        if let Some(breaker) = &spec.breaker {
            numbers.push((
                "breaker.failures",
                breaker.failures.into(),
                BREAKER_FAILURES,
            ));
            numbers.push(("breaker.minimum", breaker.minimum.into(), BREAKER_MINIMUM));
            numbers.push(("breaker.probes", breaker.probes.into(), BREAKER_PROBES));
        }
    } else {
        numbers.push(("batch", spec.batch.into(), BATCH));
    }
    if let Some(most) = spec.cap.in_flight {
        numbers.push(("max_in_flight", most.into(), IN_FLIGHT));
    }
    if let Some(rate) = spec.cap.rate {
        numbers.push(("rate", rate.count.into(), RATE));
    }
    let outside = numbers
        .into_iter()
        .filter(|(_, number, range)| !range.contains(number));
    outside
        .map(|(setting, _, range)| SpecError::OutOfRange {
            setting,
            least: *range.start(),
            most: *range.end(),
        })
        .collect()
}

fn durations(spec: &HandlerSpec) -> Vec<SpecError> {
    let mut positive = vec![("timeout", spec.timeout), ("lease", spec.lease)];
    let mut any = Vec::new();
    let mut pairs = Vec::new();
    let mut budget = |names: [&'static str; 4], policy: &RetryPolicy| {
        let [table, span, first, max] = names;
        any.push((span, policy.span));
        positive.push((first, policy.first));
        positive.push((max, policy.max));
        pairs.push((table, policy.first, policy.max));
    };
    budget(
        ["retry", "retry.for", "retry.first", "retry.max"],
        &spec.policy.retry,
    );
    budget(
        ["not_yet", "not_yet.for", "not_yet.first", "not_yet.max"],
        &spec.policy.not_yet,
    );
    let breaker = spec.breaker.as_ref().filter(|_| spec.kind.makes_calls());
    if let Some(BreakerPolicy {
        window, first, max, ..
    }) = breaker
    {
        positive.push(("breaker.window", *window));
        positive.push(("breaker.first", *first));
        positive.push(("breaker.max", *max));
        pairs.push(("breaker", *first, *max));
    }
    if let Some(rate) = spec.cap.rate {
        positive.push(("rate", rate.per));
    }
    any.extend(spec.probes.times().iter().map(|at| ("probe", *at)));
    let mut problems = Vec::new();
    if spec.timeout > TIMEOUT_MAX {
        problems.push(SpecError::TooLong {
            setting: "timeout",
            most: "1d",
        });
    }
    let zero = positive.iter().filter(|(_, time)| time.is_zero());
    problems.extend(zero.map(|(setting, _)| SpecError::Zero(setting)));
    let long = positive.iter().chain(&any);
    let long = long.filter(|(setting, time)| *time > LONGEST && *setting != "timeout");
    problems.extend(long.map(|(setting, _)| SpecError::TooLong {
        setting,
        most: "ten years",
    }));
    let crossed = pairs.iter().filter(|(_, first, max)| first > max);
    problems.extend(crossed.map(|(setting, ..)| SpecError::FirstBeyondMax { setting }));
    problems
}

/// What a lane must be for the other settings, and they for it.
fn lanes(spec: &HandlerSpec, said: Said) -> Vec<SpecError> {
    let mut problems = Vec::new();
    let laned = spec.lane.is_some();
    if said.lane_on_dead && !laned {
        problems.push(SpecError::NoLane("lane_on_dead"));
    }
    if said.lane_on_uncertain {
        if !laned {
            problems.push(SpecError::NoLane("lane_on_uncertain"));
        }
        match (&spec.kind, spec.kind.on_unknown()) {
            (HandlerKind::Http(_), OnUnknown::Retry) => problems.push(SpecError::SentAgain),
            (_, OnUnknown::Retry) => problems.push(SpecError::NeverUncertain),
            (_, OnUnknown::Probe | OnUnknown::Hold) => {}
        }
    }
    if spec.policy.on_uncertain == OnUncertain::Skip {
        if spec.apply_if_newer.is_some() {
            problems.push(SpecError::SkipAndNewer);
        }
        if spec.policy.on_dead == OnDead::Hold {
            problems.push(SpecError::SkipAndHold);
        }
    }
    let newer = spec.apply_if_newer.is_some() && spec.kind.makes_calls();
    if newer && spec.lane != Some(LaneBy::Entity) {
        problems.push(SpecError::NewerWithoutLane);
    }
    problems
}

/// What an operation adds.
fn operation(handler: &HandlerSpec, spec: &OperationSpec) -> Vec<SpecError> {
    let mut problems = Vec::new();
    if !handler.events.is_empty() {
        problems.push(SpecError::EventsOfOperation);
    }
    if matches!(handler.kind, HandlerKind::SqlElsewhere { .. }) {
        problems.push(SpecError::OperationElsewhere);
    }
    if matches!(handler.kind, HandlerKind::Settle(_)) {
        problems.push(SpecError::OperationSettles);
    }
    if handler.apply_if_newer.is_some() {
        problems.push(SpecError::NotOfOperation("apply_if_newer"));
    }
    if handler.lane == Some(LaneBy::Entity) || handler.lane == Some(LaneBy::Account) {
        problems.push(SpecError::NotOfOperation("lane"));
    }
    let pointers = spec.volatile.iter().filter(|text| !is_volatile(text));
    problems.extend(pointers.map(|text| SpecError::Volatile(text.clone())));
    let headers = spec.headers.iter();
    let headers =
        headers.filter(|name| !may_be_listed(name) || name.to_ascii_lowercase() != **name);
    problems.extend(headers.map(|name| SpecError::OperationHeader(name.clone())));
    for (setting, time) in [
        ("keep_key", spec.keep_key),
        ("keep_response", spec.keep_response),
    ] {
        match time {
            Some(time) if time.is_zero() => problems.push(SpecError::Zero(setting)),
            Some(time) if time > LONGEST => problems.push(SpecError::TooLong {
                setting,
                most: "ten years",
            }),
            _ => {}
        }
    }
    if spec.wait > spec.wait_max {
        problems.push(SpecError::WaitBeyondMax);
    }
    problems
}

/// A pointer to a member; the empty one would leave the whole intent out.
fn is_volatile(pointer: &str) -> bool {
    !pointer.is_empty() && valid_pointer(pointer)
}

/// Whether a text names a function that a `sql` handler can call.
pub(crate) fn check_call(call: &str) -> Result<(), SpecError> {
    let plain = |part: &str| {
        (1..=63).contains(&part.len())
            && part.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    match call.split_once('.') {
        Some((schema, function)) if plain(schema) && plain(function) => Ok(()),
        _ => Err(SpecError::Call(call.to_owned())),
    }
}

fn http(target: &HttpTarget, signer: &dyn Provider) -> Vec<SpecError> {
    let mut problems = Vec::new();
    problems.extend(check_url(&target.url).err().map(SpecError::Url));
    if let HttpUnknown::Probe(probe) = &target.on_unknown {
        problems.extend(check_probe_url(&probe.url).err().map(SpecError::ProbeUrl));
    }
    if target.secrets.is_empty() {
        let none = "there is none: calls would go out unsigned".to_owned();
        problems.push(SpecError::Secrets(none));
    }
    let bad = |(label, secret): &(String, SecretText)| {
        let why = check_secret(secret, signer).err()?;
        Some(SpecError::Secrets(format!("secret {label:?}: {why}")))
    };
    problems.extend(target.secrets.iter().filter_map(bad));
    problems
}

/// Whether calls can be signed with this.
fn check_secret(secret: &SecretText, signer: &dyn Provider) -> Result<(), String> {
    secret.refuse_stand_in()?;
    signer
        .key(secret, true)
        .map_err(|error| format!("cannot be used: {error}"))?;
    check_signs(secret)
}

/// Whether a usable secret is one that signs.
pub(crate) fn check_signs(secret: &SecretText) -> Result<(), String> {
    if secret.expose().starts_with("whpk_") {
        return Err("is a public key (whpk_): it cannot sign; use a whsec_ secret".to_owned());
    }
    Ok(())
}

/// As [`check_url`], with the key's place filled.
pub(crate) fn check_probe_url(text: &str) -> Result<(), String> {
    let filled = text.replace("{effect_key}", "ohk_0");
    if filled.contains(['{', '}']) {
        return Err("knows {effect_key} only".to_owned());
    }
    check_url(&filled)
}

/// Whether a text is a URL we can post to.
pub(crate) fn check_url(text: &str) -> Result<(), String> {
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

#[cfg(test)]
mod tests;
