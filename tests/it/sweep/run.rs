//! Many points on several lanes.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::str::FromStr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use sha2::{Digest, Sha256};

use crate::support::node::NOT_STARTED;
use crate::support::signer;
use crate::support::wait::TIME_MAX;

use super::lane::{Ended, Lane, RUN_MAX};
use super::plan;
use super::point::Point;
use super::report::{Report, table};
use super::scenario::Scenario;

/// Tries until a message that did not come is given up.
const TRIES: u32 = 3;
/// After so many runs a lane is made anew, so that its tables stay small.
const RUNS_PER_LANE: u32 = 150;
const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// What is swept, and how.
pub(super) struct Options {
    pub(super) lanes: usize,
    pub(super) scenarios: Vec<Scenario>,
    pub(super) goldens: usize,
    /// How many of the points, chosen by the seed.
    pub(super) percent: usize,
    /// No further points are taken on after it.
    pub(super) time: Option<Duration>,
    pub(super) seed: u64,
    pub(super) report: Option<String>,
    pub(super) table: Option<String>,
}

/// `ONCEHOOK_SWEEP_<NAME>`.
pub(super) fn option<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(format!("ONCEHOOK_SWEEP_{name}")).ok()?;
    let value = text.parse().ok();
    assert!(
        value.is_some(),
        "ONCEHOOK_SWEEP_{name}: {text:?} cannot be read"
    );
    value
}

/// `ONCEHOOK_SWEEP_SCENARIOS`, or all.
pub(super) fn scenarios() -> Vec<Scenario> {
    let Some(names) = option::<String>("SCENARIOS") else {
        return Scenario::ALL.to_vec();
    };
    let named =
        |name: &str| Scenario::named(name).unwrap_or_else(|| panic!("no scenario {name:?}"));
    names.split(',').map(named).collect()
}

pub(super) fn seed_of_now() -> u64 {
    signer::now_s().try_into().unwrap()
}

/// Finds the points, runs them, fails if one does.
pub(super) fn sweep(options: &Options) {
    let began = Instant::now();
    let all = all_points(options);
    let report = options
        .report
        .as_deref()
        .map(|path| Report::open(Path::new(path)));
    let passed = report.as_ref().map(Report::passed).unwrap_or_default();
    let mut waiting: Vec<Point> = all
        .iter()
        .filter(|point| !passed.contains(&point.to_string()))
        .cloned()
        .collect();
    waiting.sort_by_cached_key(|point| Sha256::digest(format!("{} {point}", options.seed)));
    waiting.truncate(all.len() * options.percent / 100);
    eprintln!(
        "sweep: {} points, {} to run, seed {}, golden runs took {:?}",
        all.len(),
        waiting.len(),
        options.seed,
        began.elapsed()
    );
    let work = Work::new(waiting, options.time, report);
    in_lanes(options.lanes, || block_on(lane(&work)));
    work.again_alone();
    work.print();
    if let (Some(path), Some(report)) = (&options.table, &work.report) {
        let results = report.results();
        let count = |what: &str| {
            let these = all
                .iter()
                .filter_map(|point| results.get(&point.to_string()));
            these.filter(|result| *result == what).count()
        };
        let text = format!(
            "{} points; {} passed, of these {} whose message did not come at the first try; {} not reached, {} failed.\n\n{}",
            all.len(),
            count("passed"),
            report.retried(),
            count("not reached"),
            count("failed"),
            table(&all, &results)
        );
        std::fs::write(path, &text).unwrap();
        eprintln!("{text}");
    }
    work.fail_if_any(&format!("ONCEHOOK_SWEEP_SEED={}", options.seed));
}

/// Runs these points on one lane.
pub(super) fn points(points: Vec<Point>) {
    let work = Work::new(points, None, None);
    *work.late.lock().unwrap() = None;
    block_on(lane(&work));
    for (point, result) in work.results.lock().unwrap().iter() {
        eprintln!("{result}: {point}");
    }
    work.fail_if_any("");
}

fn all_points(options: &Options) -> Vec<Point> {
    let scenarios = Mutex::new(VecDeque::from(options.scenarios.clone()));
    let find = async || {
        let mut lane = Lane::start().await;
        let mut points = Vec::new();
        loop {
            let Some(scenario) = scenarios.lock().unwrap().pop_front() else {
                return points;
            };
            let messages = plan::messages(&mut lane, scenario, options.goldens).await;
            let own = plan::points(scenario, &messages);
            eprintln!(
                "{}: {} messages, {} points",
                scenario.name(),
                messages.len(),
                own.len()
            );
            points.extend(own);
        }
    };
    let lanes = options.lanes.min(options.scenarios.len()).min(4);
    in_lanes(lanes, || block_on(find()))
        .into_iter()
        .flatten()
        .collect()
}

/// Does it in so many threads at once.
fn in_lanes<T: Send>(lanes: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes).map(|_| scope.spawn(&work)).collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap());
        ended.collect()
    })
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

/// The points that wait, and what became of the others.
struct Work {
    total: usize,
    waiting: Mutex<VecDeque<Point>>,
    end: Option<Instant>,
    results: Mutex<BTreeMap<String, String>>,
    failures: Mutex<Vec<String>>,
    /// What did not come to its end in time beside the other lanes; `None`: nobody is beside us.
    late: Mutex<Option<Vec<Point>>>,
    report: Option<Report>,
    began: Instant,
    printed: Mutex<Instant>,
}

impl Work {
    fn new(points: Vec<Point>, time: Option<Duration>, report: Option<Report>) -> Self {
        let now = Instant::now();
        Self {
            total: points.len(),
            waiting: Mutex::new(points.into()),
            end: time.map(|time| now + time),
            results: Mutex::default(),
            failures: Mutex::default(),
            late: Mutex::new(Some(Vec::new())),
            report,
            began: now,
            printed: Mutex::new(now),
        }
    }

    fn next(&self) -> Option<Point> {
        if self.end.is_some_and(|end| Instant::now() > end) {
            return None;
        }
        self.waiting.lock().unwrap().pop_front()
    }

    fn add(&self, point: &Point, ended: &Result<Ended, String>, tries: u32, took: Duration) {
        if let Err(why) = ended
            && is_of_time(why)
            && let Some(late) = self.late.lock().unwrap().as_mut()
        {
            let short: String = why.chars().take(200).collect();
            eprintln!("too slow beside the others, again later: {point}\n{short}\n");
            late.push(point.clone());
            return;
        }
        if let Some(report) = &self.report {
            report.add(point, ended, tries, took.as_millis());
        }
        let result = match ended {
            Ok(Ended::Passed) => "passed",
            Ok(Ended::NotReached) => "not reached",
            Err(why) => {
                let short: String = why.chars().take(1_200).collect();
                eprintln!("FAILED {point}\n{short}\n");
                self.failures.lock().unwrap().push(point.to_string());
                "failed"
            }
        };
        self.results
            .lock()
            .unwrap()
            .insert(point.to_string(), result.to_owned());
        let mut printed = self.printed.lock().unwrap();
        if printed.elapsed() > PROGRESS_EVERY {
            *printed = Instant::now();
            self.print();
        }
    }

    /// A machine that others keep busy is slow, which is nobody's failure; what does not end on a
    /// lane of its own either, is.
    fn again_alone(&self) {
        let late = self.late.lock().unwrap().take().unwrap_or_default();
        if late.is_empty() {
            return;
        }
        eprintln!("sweep: {} points again, one at a time", late.len());
        // Some are enough to tell a busy machine from a fault.
        let end = self.end.map(|end| end + (end - self.began) / 3);
        block_on(async {
            for point in late {
                if end.is_some_and(|end| Instant::now() > end) {
                    eprintln!("no time left to look again at {point}");
                    continue;
                }
                let (began, mut held, mut runs) = (Instant::now(), None, 0);
                let (ended, tries) = run(&point, &mut held, &mut runs).await;
                self.add(&point, &ended, tries, began.elapsed());
            }
        });
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn print(&self) {
        let results = self.results.lock().unwrap();
        let count = |what: &str| results.values().filter(|result| *result == what).count();
        let (done, left) = (results.len(), self.total.saturating_sub(results.len()));
        let per_s = done as f64 / self.began.elapsed().as_secs_f64();
        eprintln!(
            "sweep: {done} of {} points, {:.0} a minute, {:.0} minutes left; {} passed, {} not reached, {} failed",
            self.total,
            per_s * 60.0,
            left as f64 / per_s / 60.0,
            count("passed"),
            count("not reached"),
            count("failed"),
        );
    }

    fn fail_if_any(&self, environment: &str) {
        let failures = self.failures.lock().unwrap();
        let commands: Vec<String> = failures
            .iter()
            .map(|point| format!("ONCEHOOK_SWEEP_POINT='{point}' cargo test --test it -- --ignored --nocapture sweep::one"))
            .collect();
        assert!(
            commands.is_empty(),
            "{} points failed ({environment}); each again by\n{}",
            commands.len(),
            commands.join("\n")
        );
    }
}

/// Takes points until there are none.
async fn lane(work: &Work) {
    let mut held: Option<Lane> = None;
    let mut runs = 0;
    while let Some(point) = work.next() {
        let began = Instant::now();
        let (ended, tries) = run(&point, &mut held, &mut runs).await;
        work.add(&point, &ended, tries, began.elapsed());
    }
}

/// Runs a point; also returns how often, since a message may not come. A run that fails leaves its
/// lane in an unknown state, so the next one gets a new lane.
async fn run(
    point: &Point,
    held: &mut Option<Lane>,
    runs: &mut u32,
) -> (Result<Ended, String>, u32) {
    let mut tries = 0;
    loop {
        tries += 1;
        *runs += 1;
        let taken = held.take().filter(|_| *runs % RUNS_PER_LANE != 0);
        // A panic is this point's failure.
        let ran = AssertUnwindSafe(async {
            let mut lane = match taken {
                Some(lane) => lane,
                None => Lane::start().await,
            };
            let ended = lane.strike_at(point).await;
            (lane, ended)
        })
        .catch_unwind()
        .await;
        let ended = match ran {
            Ok((lane, ended)) => {
                *held = Some(lane).filter(|_| ended.is_ok());
                ended
            }
            Err(panic) => Err(format!("panicked: {}", words(&*panic))),
        };
        if ended != Ok(Ended::NotReached) || tries >= TRIES {
            return (ended, tries);
        }
    }
}

/// Whether it says that something took too long; anything else that is wrong would be wrong on
/// any machine.
fn is_of_time(why: &str) -> bool {
    [
        format!("within {RUN_MAX:?}"),
        format!("waited {TIME_MAX:?} in vain"),
        NOT_STARTED.to_owned(),
    ]
    .iter()
    .any(|sign| why.contains(sign))
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}
