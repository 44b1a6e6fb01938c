//! The crash sweep: every protocol message between the service and PostgreSQL as a crash point.
//!
//! A proxy names each message of a golden run (`label`). For each message, each cut (not forwarded;
//! forwarded and the answer lost; frozen; reset) and each kill (nothing; the process whose message it
//! is; the other node; PostgreSQL) the scenario is played again up to the message, the fault takes
//! place, what died is started again, senders come again until they are told 2xx, the work drains,
//! and `check` compares the records from outside with the tables and a ledger.
//!
//! A lane has a PostgreSQL, a node that receives (`inbox`), one that dispatches (`worker`), and a
//! stand-by that is stopped until the fault and then dispatches too, so that a stale worker meets
//! somebody who has taken over.
//!
//! ```console
//! $ cargo test --test it -- --ignored --nocapture sweep::full     # or: just sweep
//! $ ONCEHOOK_SWEEP_POINT='dispatch/worker delivery_lock > Sync #1/freeze/none' \
//!   cargo test --test it -- --ignored --nocapture sweep::one      # one point, as failures print it
//! ```
//!
//! In the suite runs what fits into ten seconds, or `ONCEHOOK_SWEEP_PERCENT` of all points, as in CI.
//!
//! Options, by environment:
//!
//! - `ONCEHOOK_SWEEP_LANES`: how many points at once, each with its own PostgreSQL. Default 8.
//! - `ONCEHOOK_SWEEP_SCENARIOS`: only these, separated by commas.
//! - `ONCEHOOK_SWEEP_REPORT`: file of results, a JSON line per point. Default `target/sweep.jsonl`.
//!   Points that passed there under the same build are not run again; delete it to begin anew.
//! - `ONCEHOOK_SWEEP_TABLE`: file for the summary. Default `target/sweep.md`.
//! - `ONCEHOOK_SWEEP_SEED`: order of the points. Default: the time.
//! - `ONCEHOOK_SWEEP_MINUTES`: takes on no further points after so long.

mod check;
mod label;
mod lane;
mod outside;
mod plan;
mod point;
mod proxy;
mod report;
mod run;
mod scenario;
mod service;
mod start;

use std::time::Duration;

use run::{Options, option};
use scenario::Scenario;

/// Every point there is.
#[test]
#[ignore = "long: just sweep"]
fn full() {
    let minutes: Option<u64> = option("MINUTES");
    run::sweep(&Options {
        lanes: option("LANES").unwrap_or(8),
        scenarios: run::scenarios(),
        goldens: 3,
        percent: 100,
        time: minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        seed: option("SEED").unwrap_or_else(run::seed_of_now),
        report: Some(option("REPORT").unwrap_or_else(|| "target/sweep.jsonl".to_owned())),
        table: Some(option("TABLE").unwrap_or_else(|| "target/sweep.md".to_owned())),
    });
}

/// The points of `ONCEHOOK_SWEEP_POINT`, a line each.
#[test]
#[ignore = "long: one point of the sweep, by ONCEHOOK_SWEEP_POINT"]
fn one() {
    let texts: String = option("POINT").expect("ONCEHOOK_SWEEP_POINT names a point");
    let points = texts.lines().map(|text| text.parse().unwrap());
    run::points(points.collect());
}

/// A share of them, or what fits into some seconds; elsewhere each time.
#[test]
fn a_seeded_sample_of_crash_points_holds() {
    let (percent, minutes): (Option<usize>, Option<u64>) = (option("PERCENT"), option("MINUTES"));
    run::sweep(&Options {
        lanes: option("LANES").unwrap_or(if percent.is_some() { 8 } else { 3 }),
        scenarios: Scenario::ALL.to_vec(),
        goldens: 1,
        percent: percent.unwrap_or(100),
        time: match (percent, minutes) {
            (_, Some(minutes)) => Some(Duration::from_secs(60 * minutes)),
            (Some(_), None) => None,
            (None, None) => Some(Duration::from_secs(10)),
        },
        seed: option("SEED").unwrap_or_else(run::seed_of_now),
        report: None,
        table: None,
    });
}
