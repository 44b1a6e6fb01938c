//! What `check` says, for people and for machines.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::config::{self, Config, SourceSettings, units};
use crate::dispatch::{HandlerKind, HandlerSpec, HttpUnknown};
use crate::domain::operation::{OnFailure, Profile};
use crate::domain::{OnDead, OnUncertain, Secret};
use crate::provider::OnConflict;

/// A usable configuration, explained.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    valid: bool,
    file: String,
    public: String,
    api: String,
    sources: Vec<SourceReport>,
    handlers: Vec<HandlerReport>,
    operations: Vec<OperationReport>,
    pub(super) warnings: Vec<String>,
    /// Only with `--connect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) database: Option<Database>,
}

/// What the database said.
#[derive(Debug, Serialize)]
pub(super) struct Database {
    pub(super) pending: Vec<String>,
    pub(super) missing_functions: Vec<String>,
    /// Of sql handlers with a database of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) elsewhere: Vec<Elsewhere>,
}

/// What the database of a handler that has its own said.
#[derive(Debug, Serialize)]
pub(super) struct Elsewhere {
    pub(super) handler: String,
    /// `None`: it was reached, and function and ledger are there.
    pub(super) problem: Option<String>,
}

impl Elsewhere {
    pub(super) fn wrong(&self) -> Option<String> {
        let problem = self.problem.as_ref()?;
        Some(format!("handler {:?}: {problem}", self.handler))
    }
}

#[derive(Debug, Serialize)]
struct SourceReport {
    name: String,
    provider: &'static str,
    /// `None`: its events come from `oncehook.emit`.
    path: Option<String>,
    secrets: Vec<SecretReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accept_modes: Option<Vec<&'static str>>,
    on_conflict: &'static str,
    /// Handlers some of its events go to.
    handlers: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SecretReport {
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    alive: bool,
}

#[derive(Debug, Serialize)]
struct HandlerReport {
    name: String,
    kind: &'static str,
    target: String,
    events: Vec<String>,
    timeout: String,
    lease: String,
    retry: String,
    /// Lane, and what is skipped for its age.
    order: String,
    /// Caps, priorities, breaker.
    flow: String,
}

#[derive(Debug, Serialize)]
struct OperationReport {
    path: String,
    wait: String,
    ignore: Vec<String>,
    retry: String,
    keep: String,
    handler: HandlerReport,
}

impl Report {
    pub(super) fn of(config: &Config, now: Timestamp) -> Self {
        Self {
            valid: true,
            file: config.path.display().to_string(),
            public: config.listen.public.to_string(),
            api: config.listen.api.to_string(),
            sources: config
                .sources
                .iter()
                .map(|s| source(s, config, now))
                .collect(),
            handlers: config.handlers.iter().map(handler).collect(),
            operations: config.operations.iter().filter_map(operation).collect(),
            warnings: config.warnings.iter().map(ToString::to_string).collect(),
            database: None,
        }
    }

    /// The page for people.
    pub(super) fn text(&self) -> String {
        let mut lines = vec![
            format!("{} can be used", self.file),
            format!("webhooks on {}, status on {}", self.public, self.api),
        ];
        lines.extend(self.sources.iter().flat_map(SourceReport::lines));
        lines.extend(self.handlers.iter().flat_map(HandlerReport::lines));
        lines.extend(self.operations.iter().flat_map(OperationReport::lines));
        if let Some(database) = &self.database {
            lines.push(String::new());
            lines.push(format!(
                "database reached: {} pending, {} missing",
                list(&database.pending, "no migration"),
                list(&database.missing_functions, "no function")
            ));
            lines.extend(
                database
                    .elsewhere
                    .iter()
                    .filter(|other| other.problem.is_none())
                    .map(|other| {
                        format!(
                            "database of {} reached: function and ledger are there",
                            other.handler
                        )
                    }),
            );
        }
        lines.join("\n")
    }
}

impl SourceReport {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            String::new(),
            format!("source {} ({})", self.name, self.provider),
        ];
        if self.path.is_none() {
            lines.push("  url       none: events come from oncehook.emit".to_owned());
        }
        lines.extend(
            self.path
                .iter()
                .map(|path| format!("  url       POST {path}")),
        );
        lines.extend(self.secrets.iter().map(|secret| {
            let end = match (secret.until, secret.alive) {
                (None, _) => "no end".to_owned(),
                (Some(until), true) => format!("until {until}"),
                (Some(until), false) => format!("ended {until}"),
            };
            format!("  secret    {:?}, {end}", secret.label)
        }));
        if let Some(modes) = &self.accept_modes {
            lines.push(format!("  modes     only {}", modes.join(", ")));
        }
        let answer = match self.on_conflict {
            "reject" => "answered 409, recorded",
            _ => "acknowledged, recorded",
        };
        if self.path.is_some() {
            lines.push(format!("  conflict  {answer}"));
        }
        lines.push(format!(
            "  goes to   {}",
            list(&self.handlers, "no handler: stored as unrecognized")
        ));
        lines
    }
}

impl HandlerReport {
    fn lines(&self) -> Vec<String> {
        vec![
            String::new(),
            format!("handler {} ({})", self.name, self.kind),
            format!("  runs      {}", self.target),
            format!("  takes     {}", self.events.join(", ")),
            format!("  time      timeout {}, lease {}", self.timeout, self.lease),
            format!("  retry     {}", self.retry),
            format!("  order     {}", self.order),
            format!("  flow      {}", self.flow),
        ]
    }
}

impl OperationReport {
    fn lines(&self) -> Vec<String> {
        let handler = &self.handler;
        vec![
            String::new(),
            format!("operation {} ({})", handler.name, handler.kind),
            format!("  url       POST {} with Idempotency-Key", self.path),
            format!("  runs      {}", handler.target),
            format!("  waits     {}", self.wait),
            format!("  ignores   {}", list(&self.ignore, "nothing")),
            format!("  again     {}", self.retry),
            format!("  keeps     {}", self.keep),
            format!(
                "  time      timeout {}, lease {}",
                handler.timeout, handler.lease
            ),
            format!("  retry     {}", handler.retry),
            format!("  flow      {}", handler.flow),
        ]
    }
}

fn list(items: &[String], none: &str) -> String {
    if items.is_empty() {
        none.to_owned()
    } else {
        items.join(", ")
    }
}

fn source(settings: &SourceSettings, config: &Config, now: Timestamp) -> SourceReport {
    let source = &settings.source;
    let takes = |handler: &&HandlerSpec| {
        handler
            .events
            .iter()
            .any(|p| config::feeds(p, &source.name))
    };
    let secret = |secret: &Secret| SecretReport {
        label: secret.label.clone(),
        until: secret.until,
        alive: secret.alive(now),
    };
    SourceReport {
        name: source.name.clone(),
        provider: source.provider.name(),
        path: source
            .provider
            .receives_requests()
            .then(|| format!("/webhooks/{}", source.name)),
        secrets: source.secrets.iter().map(secret).collect(),
        accept_modes: source
            .accept_modes
            .as_ref()
            .map(|modes| modes.iter().map(|m| m.as_str()).collect()),
        on_conflict: match source.on_conflict {
            OnConflict::Ack => "ack",
            OnConflict::Reject => "reject",
        },
        handlers: config
            .handlers
            .iter()
            .filter(takes)
            .map(|h| h.name.clone())
            .collect(),
    }
}

fn handler(spec: &HandlerSpec) -> HandlerReport {
    let (kind, target) = match &spec.kind {
        HandlerKind::Sql { call } => (
            "sql",
            format!(
                "{call}(event), up to {} events per transaction: exactly once",
                spec.batch
            ),
        ),
        HandlerKind::SqlElsewhere { call, database } => (
            "sql",
            format!(
                "{call}(event) in its own database {}, up to {} at once: exactly once there, by its ledger",
                database.database(),
                spec.concurrency
            ),
        ),
        // Code is given to the engine by an embedding application, never by the file.
        HandlerKind::Function(_) => ("function", String::from("code in this process")),
        HandlerKind::Http(http) => {
            let labels: Vec<_> = http
                .secrets
                .iter()
                .map(|(label, _)| format!("{label:?}"))
                .collect();
            let unknown = match &http.on_unknown {
                HttpUnknown::Retry => "sent again when the answer is lost".to_owned(),
                HttpUnknown::Probe(probe) => format!(
                    "when the answer is lost, {} {} is asked",
                    if probe.post { "POST" } else { "GET" },
                    probe.url
                ),
                HttpUnknown::Hold => "when the answer is lost, a person decides".to_owned(),
            };
            let target = format!(
                "POST {}, signed with {}, up to {} at once; {unknown}",
                http.url,
                labels.join(" and "),
                spec.concurrency
            );
            ("http", target)
        }
        HandlerKind::External(_) => ("external", String::from("code in this process")),
    };
    let retry = spec.policy.retry;
    HandlerReport {
        name: spec.name.clone(),
        kind,
        target,
        events: spec.events.iter().map(ToString::to_string).collect(),
        timeout: units::show_duration(spec.timeout),
        lease: units::show_duration(spec.lease),
        retry: format!(
            "for {}, every {} to {}; dead after {} crashes",
            units::show_duration(retry.span),
            units::show_duration(retry.first),
            units::show_duration(retry.max),
            spec.policy.crashes
        ),
        order: order(spec),
        flow: flow(spec),
    }
}

fn operation(spec: &HandlerSpec) -> Option<OperationReport> {
    let operation = spec.operation.as_ref()?;
    let kept = |time: Option<Duration>, otherwise: &str| {
        time.map_or_else(
            || otherwise.to_owned(),
            |time| format!("for {}", units::show_duration(time)),
        )
    };
    let profile = match operation.profile {
        Profile::Standard => "other content 409, under way 202",
        Profile::Ietf => "other content 422, under way 409",
    };
    Some(OperationReport {
        path: format!("/v1/operations/{}", spec.name),
        wait: format!(
            "{}, at most {}; {profile}",
            units::show_duration(operation.wait),
            units::show_duration(operation.wait_max)
        ),
        ignore: operation.volatile.clone(),
        retry: match operation.on_failure {
            OnFailure::Release => "after a failure without effect, a retry begins anew",
            OnFailure::Keep => "a failure stays: a correction needs a new key",
        }
        .to_owned(),
        keep: format!(
            "key {}, response {}",
            kept(operation.keep_key, "for ever"),
            kept(operation.keep_response, "as long as the key")
        ),
        handler: handler(spec),
    })
}

fn order(spec: &HandlerSpec) -> String {
    let mut parts = Vec::new();
    if let Some(lane) = &spec.lane {
        parts.push(format!("one at a time by {lane}"));
        parts.push(match spec.policy.on_dead {
            OnDead::Skip => "the next one runs after a dead letter".to_owned(),
            OnDead::Hold => "a dead one holds the rest until a person decides".to_owned(),
        });
        if spec.policy.on_uncertain == OnUncertain::Skip {
            parts.push("one whose result is unknown is passed by".to_owned());
        }
    }
    if let Some(version) = &spec.apply_if_newer {
        parts.push(format!(
            "older by {version} than what was applied is skipped"
        ));
    }
    if parts.is_empty() {
        parts.push("none promised".to_owned());
    }
    parts.join("; ")
}

fn flow(spec: &HandlerSpec) -> String {
    let mut parts = Vec::new();
    let rest = spec.priorities.rest.as_str();
    let named = spec.priorities.named.iter();
    let named: String = named
        .map(|(pattern, of)| [", ", of.as_str(), " for ", &pattern.to_string()].concat())
        .collect();
    parts.push(format!("priority {rest}{named}"));
    if let Some(most) = spec.cap.in_flight {
        parts.push(format!("{most} under way over all nodes"));
    }
    if let Some(rate) = spec.cap.rate {
        parts.push(format!("{} over all nodes", units::show_rate(rate)));
    }
    if matches!(
        spec.kind,
        HandlerKind::Http(_) | HandlerKind::SqlElsewhere { .. }
    ) {
        parts.push(match spec.breaker {
            Some(breaker) => format!("breaker at {} % failures", breaker.failures),
            None => "no breaker".to_owned(),
        });
    }
    parts.join("; ")
}
