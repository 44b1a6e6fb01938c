//! What came out: a table of phases, what had to hold, and whether it did.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::faults::Event;
use super::load::Stats;
use super::place::Place;
use super::sample::{Sample, percentile_ms};
use super::{Options, Phase};
use crate::support::judge::Finding;

/// p99 of the acknowledgement while a snapshot is held, as a multiple of the baseline's.
const PINNED_ACK: f64 = 3.0;
/// The p99 of the outcome while a snapshot is held, as a multiple of the baseline's.
const PINNED_OUTCOME: f64 = 5.0;
/// Everything after the faults, as a multiple of the baseline's.
const AFTER: f64 = 2.0;
/// Memory of a node, as a multiple of the baseline's most.
const RSS: f64 = 1.5;
/// Added to bounds, so that small figures do not fail by noise.
const ACK_SLACK_MS: f64 = 20.0;
const CLAIM_SLACK_MS: f64 = 1.0;
const OUTCOME_SLACK_MS: f64 = 200.0;
const BACKLOG_SLACK: f64 = 200.0;
const DEAD_SLACK: f64 = 20_000.0;
const RSS_SLACK_MIB: f64 = 64.0;
/// A connection of ours may say nothing inside a transaction for so long.
const IDLE_MAX_MS: f64 = 1_000.0;

pub(super) struct Report<'a> {
    pub(super) options: &'a Options,
    pub(super) place: &'a Place,
    pub(super) capacity: f64,
    pub(super) rate: f64,
    pub(super) sent: u64,
    pub(super) events: Vec<Event>,
    pub(super) drained: Option<Duration>,
    pub(super) samples: Vec<Sample>,
    pub(super) stats: &'a Stats,
    pub(super) sizes: String,
    /// What `oncehook verify` found.
    pub(super) unsound: Option<String>,
}

/// Figures of a phase: medians of its samples, percentiles of all its events.
struct Figures {
    per_second: f64,
    ack_p50_ms: f64,
    ack_p99_ms: f64,
    outcome_p99_ms: f64,
    backlog: f64,
    dead_rows: f64,
    claim_ms: f64,
    delivery_mib: f64,
    rss_mib: f64,
    idle_longest_ms: f64,
}

/// Something that had to hold.
struct Check {
    what: &'static str,
    found: f64,
    most: f64,
}

impl Check {
    fn holds(&self) -> bool {
        self.found <= self.most
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn figures(samples: &[&Sample]) -> Figures {
    let of = |figure: fn(&Sample) -> f64| -> Vec<f64> {
        samples.iter().map(|sample| figure(sample)).collect()
    };
    let most = |figure| of(figure).into_iter().fold(0.0, f64::max);
    let mut waits: Vec<u32> = samples.iter().flat_map(|s| s.waits_us.clone()).collect();
    waits.sort_unstable();
    Figures {
        per_second: median(of(|s| s.per_second)),
        ack_p50_ms: percentile_ms(&waits, 50),
        ack_p99_ms: percentile_ms(&waits, 99),
        outcome_p99_ms: median(of(|s| s.outcome_p99_ms.unwrap_or(f64::NAN))),
        backlog: median(of(|s| (s.ready + s.leased) as f64)),
        dead_rows: median(of(|s| s.dead_rows as f64)),
        claim_ms: median(of(|s| s.claim_ms.unwrap_or(f64::NAN))),
        delivery_mib: most(|s| s.delivery_mib as f64),
        rss_mib: most(|s| s.rss_mib.into_iter().max().unwrap_or(0) as f64),
        idle_longest_ms: most(|s| s.idle_longest_ms),
    }
}

/// `found` against a multiple of the baseline and a little more.
fn against(what: &'static str, found: f64, baseline: f64, factor: f64, slack: f64) -> Check {
    Check {
        what,
        found,
        most: baseline * factor + slack,
    }
}

#[rustfmt::skip]
fn pinned(now: &Figures, then: &Figures) -> Vec<Check> {
    vec![
        against("held snapshot: p99 of the acknowledgement, ms", now.ack_p99_ms, then.ack_p99_ms, PINNED_ACK, ACK_SLACK_MS),
        against("held snapshot: p99 of the outcome, ms", now.outcome_p99_ms, then.outcome_p99_ms, PINNED_OUTCOME, OUTCOME_SLACK_MS),
    ]
}

#[rustfmt::skip]
fn after(now: &Figures, then: &Figures) -> Vec<Check> {
    vec![
        against("after: p99 of the acknowledgement, ms", now.ack_p99_ms, then.ack_p99_ms, AFTER, ACK_SLACK_MS),
        against("after: p99 of the outcome, ms", now.outcome_p99_ms, then.outcome_p99_ms, AFTER, OUTCOME_SLACK_MS),
        against("after: backlog, deliveries", now.backlog, then.backlog, AFTER, BACKLOG_SLACK),
        against("after: dead rows of `delivery`", now.dead_rows, then.dead_rows, AFTER, DEAD_SLACK),
        against("after: mean claim, ms", now.claim_ms, then.claim_ms, AFTER, CLAIM_SLACK_MS),
        against("after: RSS of a node, MiB", now.rss_mib, then.rss_mib, RSS, RSS_SLACK_MIB),
    ]
}

impl Report<'_> {
    fn phase(&self, phase: Phase) -> Figures {
        let samples: Vec<&Sample> = self
            .samples
            .iter()
            .filter(|sample| sample.in_phase == Some(phase))
            .collect();
        figures(&samples)
    }

    fn checks(&self) -> Vec<Check> {
        let baseline = self.phase(Phase::Baseline);
        let mut checks = pinned(&self.phase(Phase::Pinned), &baseline);
        checks.extend(after(&self.phase(Phase::After), &baseline));
        let recovery = self.phase(Phase::Recovery);
        checks.push(Check {
            what: "before any restart: RSS of a node, MiB",
            found: recovery.rss_mib,
            most: baseline.rss_mib * RSS + RSS_SLACK_MIB,
        });
        let quiet = [
            Phase::Baseline,
            Phase::Pinned,
            Phase::Recovery,
            Phase::After,
        ];
        let idle = quiet.map(|phase| self.phase(phase).idle_longest_ms);
        checks.push(Check {
            what: "without faults: longest idle in transaction, ms",
            found: idle.into_iter().fold(0.0, f64::max),
            most: IDLE_MAX_MS,
        });
        let none = |what, found| Check {
            what,
            found,
            most: 0.0,
        };
        let acknowledged = self.stats.acknowledged.load(Ordering::Relaxed);
        let days: BTreeSet<&str> = self.samples.iter().map(|s| s.day.as_str()).collect();
        let same_day = self.place.ahead_s.is_some() && days.len() < 2;
        checks.push(none(
            "events not acknowledged",
            (self.sent_in_all() - acknowledged) as f64,
        ));
        checks.push(none(
            "drains that did not end",
            f64::from(u8::from(self.drained.is_none())),
        ));
        checks.push(none("day changes missed", f64::from(u8::from(same_day))));
        checks.push(none(
            "`oncehook verify` over everything that finds something",
            f64::from(u8::from(self.unsound.is_some())),
        ));
        checks
    }

    /// The capacity's events and those offered after it.
    fn sent_in_all(&self) -> u64 {
        self.stats.before.load(Ordering::Relaxed) + self.sent
    }

    /// Writes `soak.md` and says on standard error what it says; returns what does not hold.
    pub(super) fn write(&self, findings: &BTreeSet<Finding>, acknowledged: usize) -> Vec<String> {
        let mut text = String::new();
        self.head(&mut text).unwrap();
        self.phases(&mut text).unwrap();
        let checks = self.checks();
        writeln!(
            text,
            "\n| what had to hold | found | at most | |\n| --- | --- | --- | --- |"
        )
        .unwrap();
        for check in &checks {
            let holds = if check.holds() {
                "holds"
            } else {
                "**does not hold**"
            };
            writeln!(
                text,
                "| {} | {:.1} | {:.1} | {holds} |",
                check.what, check.found, check.most
            )
            .unwrap();
        }
        let verdict = if findings.is_empty() {
            "nothing"
        } else {
            "**something**"
        };
        writeln!(
            text,
            "\nThe outside judge compared {acknowledged} acknowledged events with what is stored, booked and applied, and found {verdict}{}",
            if findings.is_empty() { "." } else { ":" }
        )
        .unwrap();
        for finding in findings.iter().take(20) {
            writeln!(text, "- {finding}").unwrap();
        }
        self.tail(&mut text).unwrap();
        fs::write(self.place.folder.join("soak.md"), &text).unwrap();
        eprintln!("\n{text}");
        checks
            .iter()
            .filter(|check| !check.holds())
            .map(|check| {
                format!(
                    "{}: {:.1}, at most {:.1}",
                    check.what, check.found, check.most
                )
            })
            .collect()
    }

    fn head(&self, text: &mut String) -> std::fmt::Result {
        let build = if cfg!(debug_assertions) {
            "debug build"
        } else {
            "release build"
        };
        let (major, minor) = self.place.version;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu
            .lines()
            .find_map(|line| line.split_once("model name")?.1.split_once(": "));
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        writeln!(
            text,
            "oncehook {} ({}, {build}), PostgreSQL {major}.{minor} (durable), {cores} cores of {}, load average at the end {}.\n\n    {}\n",
            env!("CARGO_PKG_VERSION"),
            commit(),
            cpu.map_or("an unknown processor", |(_, name)| name),
            load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            self.options.reproduce(),
        )?;
        writeln!(
            text,
            "Capacity (closed loop, handled): {:.0} events/s. Offered: {:.0}/s for {} s, {} events, with {} copies, {} conflicts, {} bad signatures. \
             Sent again: {}, of these after a 503: {}. Held up by the generator: {}. Drained after {}.",
            self.capacity,
            self.rate,
            self.options.time.as_secs(),
            self.sent,
            self.stats.copies.load(Ordering::Relaxed),
            self.stats.conflicts.load(Ordering::Relaxed),
            self.stats.forged.load(Ordering::Relaxed),
            self.stats.again.load(Ordering::Relaxed),
            self.stats.unavailable.load(Ordering::Relaxed),
            self.stats.held_up.load(Ordering::Relaxed),
            self.drained.map_or("never".to_owned(), |time| format!(
                "{:.1} s",
                time.as_secs_f64()
            )),
        )
    }

    fn phases(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\n| phase | until s | events/s | ack p50 / p99 ms | outcome p99 ms | backlog | dead rows | claim ms | `delivery` MiB | RSS MiB |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        )?;
        for (phase, end) in Phase::ALL {
            let f = self.phase(phase);
            writeln!(
                text,
                "| {} | {:.0} | {:.0} | {:.1} / {:.1} | {:.0} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} |",
                phase.name(),
                end * self.options.time.as_secs_f64(),
                f.per_second,
                f.ack_p50_ms,
                f.ack_p99_ms,
                f.outcome_p99_ms,
                f.backlog,
                f.dead_rows,
                f.claim_ms,
                f.delivery_mib,
                f.rss_mib,
            )?;
        }
        Ok(())
    }

    fn tail(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\n| table | MiB | indexes MiB |\n| --- | --- | --- |\n{}",
            self.sizes
        )?;
        let mut day = "";
        writeln!(text, "| at s | what |\n| --- | --- |")?;
        let mut lines: Vec<(f64, String)> = self
            .events
            .iter()
            .map(|event| (event.at.as_secs_f64(), event.what.clone()))
            .collect();
        for sample in &self.samples {
            if sample.day != day {
                day = &sample.day;
                lines.push((sample.at_s, format!("the database's day is {day}")));
            }
        }
        lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (at, what) in lines {
            writeln!(text, "| {at:.0} | {what} |")?;
        }
        Ok(())
    }
}

fn commit() -> String {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let text = output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or("unknown".to_owned(), |text| text.trim().to_owned())
}
