//! The soak: hours of ordinary days in one run. Half of what the machine can do is offered while
//! an old snapshot is held, nodes are replaced and killed, a day ends and a node's clock steps.
//! Afterwards everything must be as in the first minutes, and the outside judge must find nothing.
//!
//! `just soak 30m`, or
//! `SOAK_FOR=30m cargo test --release --test it -- --ignored --exact soak::the_soak --nocapture`.
//!
//! | variable | what | default |
//! | --- | --- | --- |
//! | `SOAK_FOR` | length of the load, such as `2m`, `30m`, `6h` | `30m` |
//! | `SOAK_RATE` | events a second; `half` of the measured capacity | `half` |
//! | `SOAK_SEED` | which events get copies, conflicts, bad answers | by the time of day |
//! | `SOAK_OUT` | folder of logs, samples, report | `target/soak` |
//!
//! Without `--release` the node is a debug build, and the report says so.
#![expect(clippy::cast_precision_loss, reason = "figures stay far below 2^53")]

mod faults;
mod load;
mod place;
mod report;
mod sample;

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::dice::{dice, seed};
use crate::support::judge::Behaviour;
use crate::support::judge::trial::Trial;
use crate::support::{FakeClock, TestApp};

use load::{Balancer, Load, Stats};
use place::Place;
use report::Report;
use sample::Sampler;

/// How long the capacity is measured, at most; a sixth of a short run.
const CAPACITY_TIME: Duration = Duration::from_secs(20);
/// How long the rest of the work may take after the last event.
const DRAIN_MAX: Duration = Duration::from_mins(10);

const SQL: &str = "lease = \"1s\"\nretry = { for = \"1h\", first = \"100ms\", max = \"2s\" }";
const CALL: &str =
    "timeout = \"1s\"\nlease = \"6s\"\nretry = { for = \"1h\", first = \"100ms\", max = \"2s\" }";

/// A part of the run, by what happens in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Baseline,
    Pinned,
    Recovery,
    Restarts,
    Kills,
    Clock,
    After,
}

impl Phase {
    /// All, with the part of the run at which each ends.
    const ALL: [(Self, f64); 7] = [
        (Self::Baseline, 0.15),
        (Self::Pinned, 0.15 + 1.0 / 3.0),
        (Self::Recovery, 0.60),
        (Self::Restarts, 0.70),
        (Self::Kills, 0.80),
        (Self::Clock, 0.88),
        (Self::After, 1.0),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Pinned => "an old snapshot is held",
            Self::Recovery => "recovery, day change",
            Self::Restarts => "rolling restarts",
            Self::Kills => "SIGKILL now and then",
            Self::Clock => "a node's clock steps",
            Self::After => "after",
        }
    }
}

/// The part of the run at which the database's day ends: in the recovery.
const MIDNIGHT: f64 = 0.54;

/// What was asked for.
#[derive(Debug, Clone)]
struct Options {
    time: Duration,
    rate: Option<f64>,
    seed: u64,
    out: PathBuf,
}

impl Options {
    fn read() -> Self {
        let text = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let out = text("SOAK_OUT").map(PathBuf::from);
        Self {
            time: duration(&text("SOAK_FOR").unwrap_or("30m".to_owned())),
            rate: text("SOAK_RATE")
                .filter(|rate| rate != "half")
                .map(|rate| rate.parse().expect("SOAK_RATE is a number or `half`")),
            seed: seed("SOAK_SEED"),
            out: out
                .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/soak")),
        }
    }

    fn reproduce(&self) -> String {
        let rate = self.rate.map_or("half".to_owned(), |rate| rate.to_string());
        format!(
            "SOAK_SEED={} SOAK_FOR={}s SOAK_RATE={rate} cargo test --release --test it -- --ignored --exact soak::the_soak --nocapture",
            self.seed,
            self.time.as_secs()
        )
    }
}

fn duration(text: &str) -> Duration {
    let at = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(at.unwrap_or(text.len()));
    let number: u64 = number.parse().expect("SOAK_FOR begins with a number");
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => panic!("SOAK_FOR ends with s, m or h"),
    };
    Duration::from_secs(number * seconds)
}

/// When the load began and which phase is on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Course {
    began: Instant,
    time: Duration,
}

impl Course {
    fn end_of(self, phase: Phase) -> Instant {
        let part = Phase::ALL.iter().find(|(known, _)| *known == phase);
        self.began + self.time.mul_f64(part.map_or(1.0, |(_, end)| *end))
    }

    fn end(self) -> Instant {
        self.began + self.time
    }

    fn phase(self) -> Phase {
        let now = Instant::now();
        let mut phases = Phase::ALL.iter().map(|(phase, _)| *phase);
        let current = phases.find(|phase| now < self.end_of(*phase));
        current.unwrap_or(Phase::After)
    }

    fn elapsed(self) -> Duration {
        self.began.elapsed()
    }
}

/// Of a hundred calls six go wrong once, in four ways.
fn plan(seed: u64) -> impl Fn(&str, usize) -> Behaviour + Send + Sync {
    move |key, calls_before| {
        let n = key.strip_prefix("evt_").and_then(|n| n.parse().ok());
        match dice(seed, n.unwrap_or(0), 5) % 100 {
            _ if calls_before > 0 => Behaviour::Good,
            0 => Behaviour::Slow(Duration::from_millis(1_500)),
            1 => Behaviour::Cut,
            2 | 3 => Behaviour::ErrorAfter,
            4 | 5 => Behaviour::ErrorBefore,
            _ => Behaviour::Good,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: just soak 30m"]
async fn the_soak() {
    let options = Options::read();
    let place = Place::make(&options, midnight_in(&options)).await;
    let trial = Trial::in_folder(
        place.folder.clone(),
        Duration::from_millis(50),
        true,
        plan(options.seed),
    )
    .await;
    let clock = FakeClock::new();
    let db = place.database().await;
    let mut app = trial.app(SQL, CALL).on(db);
    // As a deploy behind a balancer that needs a second to notice.
    let plain = [
        ("ONCEHOOK_LISTEN__DRAIN", "2s"),
        ("ONCEHOOK_LOG__LEVEL", "warn"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let stepping = clock
        .iter()
        .flat_map(|clock| clock.env(Duration::from_secs(1)));
    for (name, value) in plain.iter().cloned().chain(stepping) {
        app = app.env(&name, &value);
    }
    let mut app: TestApp = app.start().await;
    let mut second = app.another_node_in(plain.to_vec()).await;
    let balancer = Arc::new(Balancer::over([&app, &second]));
    let stats = Arc::new(Stats::default());
    let mut load = Load::new(
        trial.provider.clone(),
        Arc::clone(&balancer),
        Arc::clone(&stats),
        options.seed,
    );

    let capacity = load.capacity(capacity_time(&options), &app.db).await;
    let rate = options.rate.unwrap_or(capacity / 2.0);
    eprintln!(
        "soak: capacity {capacity:.0}/s, offering {rate:.0}/s for {:?}; {}",
        options.time,
        options.reproduce()
    );
    let course = Course {
        began: Instant::now(),
        time: options.time,
    };
    let sampler = Sampler::start(course, &app.db, &place, Arc::clone(&stats), &balancer).await;
    let sending = tokio::spawn(async move { load.run(course, rate).await });
    let events = faults::run(course, &mut app, &mut second, &balancer, clock.as_ref()).await;
    let sent = sending.await.unwrap();
    let drained = drain(&app).await;
    let samples = sampler.stop().await;
    trial.flush().await;
    let report = Report {
        options: &options,
        place: &place,
        capacity,
        rate,
        sent,
        events,
        drained,
        samples,
        stats: &stats,
        sizes: place.sizes(&app.db).await,
        unsound: app.db.verified().await.err(),
    };
    let client = app.db.client().await;
    let findings = trial.judge.findings(&client).await;
    let failed = report.write(&findings, trial.judge.acknowledged());
    assert!(
        findings.is_empty() && failed.is_empty(),
        "see {}:\n{}\n{:#?}\n{}\nagain with: {}",
        place.folder.join("soak.md").display(),
        failed.join("\n"),
        findings.iter().take(20).collect::<Vec<_>>(),
        report.unsound.as_deref().unwrap_or_default(),
        options.reproduce()
    );
}

fn capacity_time(options: &Options) -> Duration {
    CAPACITY_TIME.min(options.time / 6)
}

/// Start, capacity and its drain come before the load.
fn midnight_in(options: &Options) -> Duration {
    capacity_time(options).mul_f64(1.5) + Duration::from_secs(4) + options.time.mul_f64(MIDNIGHT)
}

/// Waits until nothing is left to do; tells how long it took.
async fn drain(app: &TestApp) -> Option<Duration> {
    let begin = Instant::now();
    while begin.elapsed() < DRAIN_MAX {
        if app.db.count("delivery").await == 0 {
            return Some(begin.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}
