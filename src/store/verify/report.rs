//! What a verification found, for people and machines.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

/// How one check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// Nothing contradicts it.
    Ok,
    /// Nothing is wrong: what stands so by order.
    Note,
    /// A person should look; no invariant is hurt.
    Warning,
    /// An invariant does not hold.
    Broken,
    /// It could not be answered.
    Unfinished,
}

impl CheckState {
    /// The word people read.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Note => "NOTE",
            Self::Warning => "WARNING",
            Self::Broken => "BROKEN",
            Self::Unfinished => "UNFINISHED",
        }
    }
}

/// One thing that contradicts a check. Never holds payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The event, if it is about one.
    pub event_id: Option<Uuid>,
    /// Source name, or `#id` of one that is not registered.
    pub source: Option<String>,
    /// Event key, if it is known.
    pub key: Option<String>,
    /// Handler name, or `#id` of one that is not registered.
    pub handler: Option<String>,
    /// Run number.
    pub run: Option<i32>,
    /// What is wrong, for people.
    pub detail: String,
}

impl Finding {
    pub(super) fn of_nothing(detail: String) -> Self {
        Self {
            event_id: None,
            source: None,
            key: None,
            handler: None,
            run: None,
            detail,
        }
    }
}

/// One check and what it found.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// Its stable name.
    pub check: &'static str,
    /// What holds when it finds nothing.
    pub about: &'static str,
    /// How it ended.
    pub state: CheckState,
    /// What is counted in `examined`, such as `events`; empty for checks of the server.
    pub counted: &'static str,
    /// How many it looked at.
    pub examined: Option<u64>,
    /// How many contradict it.
    pub found: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// Examples of what contradicts it, at most as many as asked for.
    pub findings: Vec<Finding>,
    /// What to do about a finding.
    pub next: &'static str,
}

/// What all checks found.
#[derive(Debug, Clone, Serialize)]
pub struct Verification {
    /// How far back history was read.
    pub since: Timestamp,
    /// Whether everything was checked and nothing is broken. Warnings do not count.
    pub holds: bool,
    /// Checks that are broken.
    pub broken: usize,
    /// Checks that warn.
    pub warnings: usize,
    /// Checks that did not finish.
    pub unfinished: usize,
    /// Every check that was run.
    pub checks: Vec<CheckReport>,
}

impl Verification {
    pub(super) fn new(since: Timestamp, checks: Vec<CheckReport>) -> Self {
        let count = |state| checks.iter().filter(|check| check.state == state).count();
        let broken = count(CheckState::Broken);
        let unfinished = count(CheckState::Unfinished);
        Self {
            since,
            holds: broken == 0 && unfinished == 0,
            broken,
            warnings: count(CheckState::Warning),
            unfinished,
            checks,
        }
    }
}

/// The findings, one per line; empty when there are none.
impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in self.checks.iter().filter(|c| c.state != CheckState::Ok) {
            let (state, name) = (check.state.as_str(), check.check);
            writeln!(f, "{state} {name}: {} found; {}", check.found, check.about)?;
            for finding in &check.findings {
                writeln!(f, "  {finding}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [&self.source, &self.key, &self.handler];
        for word in words.into_iter().flatten() {
            write!(f, "{} ", crate::telemetry::clean(word))?;
        }
        if self.key.is_none()
            && let Some(id) = self.event_id
        {
            write!(f, "event {id} ")?;
        }
        if let Some(run) = self.run {
            write!(f, "run {run} ")?;
        }
        let lead = if *self == Self::of_nothing(self.detail.clone()) {
            ""
        } else {
            "- "
        };
        write!(f, "{lead}{}", crate::telemetry::clean(&self.detail))
    }
}
