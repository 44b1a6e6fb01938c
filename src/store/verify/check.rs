//! The table of checks.

use tokio_postgres::error::SqlState;

use super::report::{CheckReport, CheckState, Finding};

/// What a finding means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    /// Something to know.
    Note,
    /// A person should look; no invariant is hurt.
    Warning,
    /// An invariant does not hold.
    Broken,
}

impl From<Severity> for CheckState {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Note => Self::Note,
            Severity::Warning => Self::Warning,
            Severity::Broken => Self::Broken,
        }
    }
}

/// What a check's statement takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reads {
    /// `$1` examples: what is live, or the server.
    Live,
    /// `$1` examples, `$2` patience in seconds: what should have ended by itself.
    Late,
    /// `$1` examples, `$2` since when.
    Since,
}

/// One check: a statement whose rows are what contradicts it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    /// Its stable name.
    pub(super) name: &'static str,
    /// What holds when it finds nothing.
    pub(super) about: &'static str,
    /// What a finding means.
    pub(super) severity: Severity,
    /// Column of `verify_counts` that says how many it looks at; empty for none.
    pub(super) counted: &'static str,
    pub(super) reads: Reads,
    pub(super) sql: &'static str,
    /// Reads every body: only when asked for.
    pub(super) costly: bool,
    /// What to do about a finding.
    pub(super) next: &'static str,
}

/// Why a check has no answer, and what to do about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unanswered {
    pub(super) why: &'static str,
    pub(super) next: &'static str,
}

impl Unanswered {
    /// For errors that cost only the answer of their own statement.
    pub(super) fn of(code: &SqlState) -> Option<Self> {
        let (why, next) = match code.code() {
            "57014" => (
                "it took too long",
                "verify again with a longer `--check-time` or a nearer `--since`",
            ),
            "55P03" => (
                "a table is locked",
                "verify again when it is free; who holds it: SELECT l.relation::regclass, a.pid, a.usename, a.query FROM pg_locks l \
                 JOIN pg_stat_activity a USING (pid) WHERE l.mode = 'AccessExclusiveLock' AND l.granted",
            ),
            "42P01" => (
                "a table is missing",
                "schema.sql says what belongs there; restore it from a backup, then verify with --all",
            ),
            "42501" => (
                "this role may not read a table",
                "let it: GRANT USAGE ON SCHEMA oncehook TO role; GRANT SELECT ON ALL TABLES IN SCHEMA oncehook TO role",
            ),
            code if code.starts_with("40") => (
                "it was in the way of what a standby replays",
                "verify again, on a standby with a longer max_standby_streaming_delay, or on the primary",
            ),
            code if code.starts_with("53") => (
                "the server lacks resources for it",
                "the server's log says which; verify again when it has them",
            ),
            _ => return None,
        };
        Some(Self { why, next })
    }
}

impl CheckReport {
    /// The same check, and that it did not finish.
    pub(super) fn unanswered(self, unanswered: Unanswered) -> Self {
        Self {
            state: CheckState::Unfinished,
            findings: vec![Finding::of_nothing(unanswered.why.to_owned())],
            next: unanswered.next,
            ..self
        }
    }
}

/// When the schema has migrations that this program does not know.
pub(super) const NEWER: &str = "verify with the oncehook that the service runs, or a newer one: what this one does not know, it cannot check";
const UNKEYED: &str = "without its key a further copy is stored and handled as a new event: put its row of event_key back from a backup \
                       before its provider comes again, and find out who or what deletes or restores rows";
const LOOK: &str = "`oncehook show SOURCE KEY` tells what is known of it";
const KEEP: &str = "keep the database as it is (a backup, the server's log) and find out who or what deletes or restores rows";
const BUG: &str = "please report it with the output of `oncehook show SOURCE KEY --json`";

impl Check {
    /// Nothing found yet.
    pub(super) fn report(&self) -> CheckReport {
        CheckReport {
            check: self.name,
            about: self.about,
            state: CheckState::Ok,
            counted: self.counted,
            examined: None,
            found: 0,
            took_ms: 0,
            findings: Vec::new(),
            next: self.next,
        }
    }
}

const fn check(
    name: &'static str,
    counted: &'static str,
    reads: Reads,
    about: &'static str,
    sql: &'static str,
    next: &'static str,
) -> Check {
    Check {
        name,
        about,
        severity: Severity::Broken,
        counted,
        reads,
        sql,
        costly: false,
        next,
    }
}

const fn warning(check: Check) -> Check {
    Check {
        severity: Severity::Warning,
        ..check
    }
}

const fn note(check: Check) -> Check {
    Check {
        severity: Severity::Note,
        ..check
    }
}

const fn costly(check: Check) -> Check {
    Check {
        costly: true,
        ..check
    }
}

/// Done by comparing two lists, not by a statement of its own.
pub(super) const SCHEMA: Check = check(
    "schema",
    "migrations",
    Reads::Live,
    "every migration is applied",
    "",
    "`oncehook migrate` brings the schema up to date",
);

/// Needs the configured handlers.
pub(super) static MISSING: Check = warning(check(
    "missing",
    "events",
    Reads::Since,
    "every event that matches a configured handler had a delivery for it",
    include_str!("../sql/verify_missing.sql"),
    "the handler was added later: `oncehook replay --missing --handler HANDLER --since WHEN --dry-run --reason WHY` lists what would run",
));

/// In the order of a webhook's path.
pub(super) static CHECKS: [Check; 38] = [
    check(
        "key_event",
        "keys",
        Reads::Since,
        "every key has its event",
        include_str!("../sql/verify_key_event.sql"),
        KEEP,
    ),
    check(
        "event_key",
        "events",
        Reads::Since,
        "every event is the one that its key names",
        include_str!("../sql/verify_event_key.sql"),
        UNKEYED,
    ),
    check(
        "event_request",
        "events",
        Reads::Since,
        "every event's bytes lie within its stored request",
        include_str!("../sql/verify_event_request.sql"),
        KEEP,
    ),
    check(
        "request_event",
        "requests",
        Reads::Since,
        "every stored request brought an event",
        include_str!("../sql/verify_request_event.sql"),
        KEEP,
    ),
    check(
        "event_state",
        "events",
        Reads::Since,
        "an event has routes or a state of its own, and only the former is handled",
        include_str!("../sql/verify_event_state.sql"),
        BUG,
    ),
    check(
        "conflict",
        "conflicts",
        Reads::Since,
        "every conflict has other content than the stored key it names",
        include_str!("../sql/verify_conflict.sql"),
        KEEP,
    ),
    check(
        "receipt_event",
        "receipts",
        Reads::Since,
        "every duplicate is of a stored event",
        include_str!("../sql/verify_receipt_event.sql"),
        KEEP,
    ),
    check(
        "route",
        "events",
        Reads::Since,
        "every handler in an event's routes has a delivery or an outcome",
        include_str!("../sql/verify_route.sql"),
        "this work is lost unless it is run: `oncehook replay --missing --handler HANDLER --since WHEN --reason WHY`",
    ),
    check(
        "delivery_event",
        "deliveries",
        Reads::Live,
        "every delivery is of a stored event and was fanned out or ordered",
        include_str!("../sql/verify_delivery_event.sql"),
        LOOK,
    ),
    check(
        "delivery_run",
        "deliveries",
        Reads::Live,
        "a live run is the one after the last outcome, with its effect key",
        include_str!("../sql/verify_delivery_run.sql"),
        BUG,
    ),
    check(
        "delivery_shape",
        "deliveries",
        Reads::Live,
        "leased deliveries have a token and an end, and no counter contradicts another",
        include_str!("../sql/verify_delivery_shape.sql"),
        BUG,
    ),
    check(
        "lease_token",
        "attempts",
        Reads::Since,
        "no lease token is used twice, and no lease ends twice",
        include_str!("../sql/verify_lease_token.sql"),
        BUG,
    ),
    warning(check(
        "lease_expired",
        "deliveries",
        Reads::Late,
        "ended leases are reaped",
        include_str!("../sql/verify_lease_expired.sql"),
        "is a node running that knows the handler? Else one of its transactions has been open since then",
    )),
    warning(check(
        "overdue",
        "deliveries",
        Reads::Late,
        "what is due is claimed",
        include_str!("../sql/verify_overdue.sql"),
        "is a node running that knows the handler, and does it keep up? `oncehook_oldest_ready_seconds` shows since when",
    )),
    check(
        "lane_head",
        "deliveries",
        Reads::Late,
        "every lane in which deliveries wait has its head",
        include_str!("../sql/verify_lane_head.sql"),
        "a running node finds such lanes within seconds: is one running?",
    ),
    warning(check(
        "emitted",
        "",
        Reads::Late,
        "what was emitted is stored",
        include_str!("../sql/verify_emitted.sql"),
        "is a node running whose configuration has the source?",
    )),
    check(
        "latest",
        "",
        Reads::Since,
        "the newest version applied to an object is that of an event that succeeded",
        include_str!("../sql/verify_latest.sql"),
        LOOK,
    ),
    note(check(
        "paused",
        "",
        Reads::Live,
        "what is paused by order",
        include_str!("../sql/verify_paused.sql"),
        "`oncehook handlers resume NAME` or `oncehook sources resume NAME` when the reason is gone",
    )),
    check(
        "caps",
        "",
        Reads::Live,
        "every handler has the row that its caps are kept by",
        include_str!("../sql/verify_caps.sql"),
        "restore it: INSERT INTO oncehook.handler_cap (handler_id) SELECT id FROM oncehook.handler ON CONFLICT DO NOTHING",
    ),
    warning(check(
        "uncertain",
        "deliveries",
        Reads::Late,
        "what is uncertain is asked about when it is due, and late answers are read",
        include_str!("../sql/verify_uncertain.sql"),
        "is a node running that has the handler with its probe? Else `oncehook resolve` says what became of the call",
    )),
    check(
        "resend",
        "attempts",
        Reads::Since,
        "no call was made while an earlier one with an unknown result could be under way",
        include_str!("../sql/verify_resend.sql"),
        "ask the receiver whether the effect key was applied twice, and report it with the output of `oncehook show SOURCE KEY --json`",
    ),
    warning(check(
        "retired",
        "deliveries",
        Reads::Live,
        "nothing waits for a retired handler",
        include_str!("../sql/verify_retired.sql"),
        "restart or reload the nodes that still have it, then `oncehook handlers retire HANDLER --reason WHY` ends them",
    )),
    check(
        "outcome_event",
        "outcomes",
        Reads::Since,
        "every outcome is of a stored event and was fanned out or ordered",
        include_str!("../sql/verify_outcome_event.sql"),
        LOOK,
    ),
    check(
        "outcome_run",
        "outcomes",
        Reads::Since,
        "runs are numbered from 1 without a gap, each with its effect key",
        include_str!("../sql/verify_outcome_run.sql"),
        BUG,
    ),
    check(
        "outcome_decided",
        "outcomes",
        Reads::Since,
        "every outcome says who decided, and an operator's is in the audit",
        include_str!("../sql/verify_outcome_decided.sql"),
        LOOK,
    ),
    check(
        "response",
        "outcomes",
        Reads::Since,
        "every outcome of an operation has its answer, and every answer its outcome",
        include_str!("../sql/verify_response.sql"),
        BUG,
    ),
    check(
        "replay_audit",
        "outcomes",
        Reads::Since,
        "every replay is in the audit",
        include_str!("../sql/verify_replay_audit.sql"),
        LOOK,
    ),
    check(
        "audit_run",
        "audits",
        Reads::Since,
        "every replay and decision in the audit is live or finished",
        include_str!("../sql/verify_audit_run.sql"),
        LOOK,
    ),
    check(
        "bulk",
        "",
        Reads::Since,
        "every bulk replay ran each event once at each handler, all of it in the audit",
        include_str!("../sql/verify_bulk.sql"),
        LOOK,
    ),
    note(check(
        "bulk_open",
        "",
        Reads::Live,
        "what bulk replays are not complete",
        include_str!("../sql/verify_bulk_open.sql"),
        "a running node goes on with it; a stopped one by `oncehook replay --continue NUMBER --reason WHY`",
    )),
    check(
        "attempt_event",
        "attempts",
        Reads::Since,
        "every try is of a stored event and a registered handler",
        include_str!("../sql/verify_attempt_event.sql"),
        KEEP,
    ),
    check(
        "attempt_count",
        "outcomes",
        Reads::Since,
        "every counted try that failed or was lost is recorded",
        include_str!("../sql/verify_attempt_count.sql"),
        LOOK,
    ),
    costly(check(
        "digest",
        "events",
        Reads::Since,
        "every event's bytes are those that were received",
        include_str!("../sql/verify_digest.sql"),
        KEEP,
    )),
    costly(check(
        "conflict_digest",
        "conflicts",
        Reads::Since,
        "every conflict's bytes are those that were received",
        include_str!("../sql/verify_conflict_digest.sql"),
        KEEP,
    )),
    check(
        "guards",
        "",
        Reads::Live,
        "the primary keys and the audit's trigger are in force",
        include_str!("../sql/verify_guards.sql"),
        "schema.sql says what belongs there; restore it, then verify with --all",
    ),
    warning(check(
        "partitions",
        "",
        Reads::Live,
        "partitions are there up to the day after tomorrow",
        include_str!("../sql/verify_partitions.sql"),
        "a running node makes them hourly; its log says why it cannot",
    )),
    warning(check(
        "sessions",
        "",
        Reads::Late,
        "no transaction is left open",
        include_str!("../sql/verify_sessions.sql"),
        "find out whose it is (pg_stat_activity, pg_prepared_xacts) and end it: it holds back vacuum",
    )),
    warning(check(
        "durability",
        "",
        Reads::Live,
        "the server writes what it commits",
        include_str!("../sql/verify_durability.sql"),
        "switch it on: a crash of the machine can lose what was acknowledged",
    )),
];

#[cfg(test)]
mod tests {
    use super::CHECKS;

    #[test]
    fn the_guarantees_name_every_check() {
        let table: Vec<&str> = include_str!("../../../docs/guarantees.md")
            .lines()
            .skip_while(|line| !line.starts_with("| checks |"))
            .take_while(|line| line.starts_with('|'))
            .filter_map(|line| line.split('|').nth(1))
            .collect();
        let missing: Vec<&str> = CHECKS
            .iter()
            .map(|check| check.name)
            .filter(|name| !table.iter().any(|cell| cell.contains(&format!("`{name}`"))))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
