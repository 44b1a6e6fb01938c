//! Figures every few seconds.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;
use tokio_postgres::Client;

use super::load::{Balancer, Stats};
use super::place::Place;
use super::{Course, Phase};
use crate::support::TestDb;

/// One line of `samples.jsonl`. Times are of the interval since the line before.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    pub(super) at_s: f64,
    pub(super) phase: &'static str,
    pub(super) acknowledged: u64,
    pub(super) per_second: f64,
    /// From due to acknowledged.
    pub(super) ack_p50_ms: f64,
    pub(super) ack_p99_ms: f64,
    /// From the ingest transaction to the outcome, of events that came 3 to 8 s ago.
    pub(super) outcome_p50_ms: Option<f64>,
    pub(super) outcome_p99_ms: Option<f64>,
    pub(super) ready: i64,
    pub(super) leased: i64,
    /// Of `delivery`, as PostgreSQL estimates it.
    pub(super) dead_rows: i64,
    pub(super) delivery_mib: i64,
    pub(super) database_mib: i64,
    /// Mean time of a claim, and how many there were.
    pub(super) claim_ms: Option<f64>,
    pub(super) claims: i64,
    pub(super) rss_mib: [u64; 2],
    /// The nodes' connections that hold a transaction open and have said nothing for 100 ms.
    pub(super) idle_in_transaction: i64,
    pub(super) idle_longest_ms: f64,
    pub(super) again: u64,
    pub(super) unavailable: u64,
    /// The database's day.
    pub(super) day: String,
    #[serde(skip)]
    pub(super) waits_us: Vec<u32>,
    #[serde(skip)]
    pub(super) in_phase: Option<Phase>,
}

const STATE: &str = "
SELECT (SELECT count(*) FROM oncehook.delivery WHERE state = 'ready'),
       (SELECT count(*) FROM oncehook.delivery WHERE state = 'leased'),
       coalesce(s.n_dead_tup, 0), pg_total_relation_size('oncehook.delivery') >> 20,
       pg_database_size(current_database()) >> 20, (now() AT TIME ZONE 'UTC')::date::text
  FROM pg_stat_user_tables s WHERE s.relid = 'oncehook.delivery'::regclass";

const CLAIMS: &str = "
SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(total_exec_time), 0)::float8
  FROM pg_stat_statements WHERE query LIKE '-- delivery_claim:%'";

const OUTCOMES: &str = "
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY took), percentile_cont(0.99) WITHIN GROUP (ORDER BY took)
  FROM (SELECT extract(epoch FROM finished_at)::float8 * 1000
               - ('x0000' || substr(replace(event_id::text, '-', ''), 1, 12))::bit(64)::bigint AS took
          FROM oncehook.outcome
         WHERE event_id >= oncehook.uuid7_floor(now() - interval '8 s')
           AND event_id < oncehook.uuid7_floor(now() - interval '3 s')) o";

const IDLE: &str = "
SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float8 * 1000
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'oncehook'
   AND state LIKE 'idle in transaction%' AND clock_timestamp() - state_change > interval '100 ms'";

/// Takes samples until it is stopped.
pub(super) struct Sampler {
    task: JoinHandle<Vec<Sample>>,
    stop: Arc<AtomicBool>,
}

impl Sampler {
    pub(super) async fn start(
        course: Course,
        db: &TestDb,
        place: &Place,
        stats: Arc<Stats>,
        balancer: &Arc<Balancer>,
    ) -> Self {
        let every = (course.time / 180).clamp(Duration::from_secs(1), Duration::from_secs(10));
        let stop = Arc::new(AtomicBool::new(false));
        let mut series = Series {
            course,
            client: db.client().await,
            stats,
            balancer: Arc::clone(balancer),
            file: File::create(place.folder.join("samples.jsonl")).unwrap(),
            last: Last::default(),
        };
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut samples = Vec::new();
            series.take().await;
            let mut due = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                due += every;
                sleep_until(due.into()).await;
                samples.push(series.take().await);
            }
            samples
        });
        Self { task, stop }
    }

    pub(super) async fn stop(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

#[derive(Default)]
struct Last {
    at_s: f64,
    acknowledged: u64,
    claims: i64,
    claims_ms: f64,
}

struct Series {
    course: Course,
    client: Client,
    stats: Arc<Stats>,
    balancer: Arc<Balancer>,
    file: File,
    last: Last,
}

impl Series {
    async fn take(&mut self) -> Sample {
        let phase = self.course.phase();
        let client = &self.client;
        let state = client.query_one(STATE, &[]).await.unwrap();
        let claims = client.query_one(CLAIMS, &[]).await.unwrap();
        let outcomes = client.query_one(OUTCOMES, &[]).await.unwrap();
        let idle = client.query_one(IDLE, &[]).await.unwrap();
        let mut waits_us = std::mem::take(&mut *self.stats.waits_us.lock().unwrap());
        waits_us.sort_unstable();

        let at_s = self.course.elapsed().as_secs_f64();
        let acknowledged = self.stats.acknowledged.load(Ordering::Relaxed);
        let (calls, total_ms): (i64, f64) = (claims.get(0), claims.get(1));
        let made = calls - self.last.claims;
        let since = (acknowledged - self.last.acknowledged) as f64;
        let sample = Sample {
            at_s,
            phase: phase.name(),
            acknowledged,
            per_second: since / (at_s - self.last.at_s).max(0.001),
            ack_p50_ms: percentile_ms(&waits_us, 50),
            ack_p99_ms: percentile_ms(&waits_us, 99),
            outcome_p50_ms: outcomes.get(0),
            outcome_p99_ms: outcomes.get(1),
            ready: state.get(0),
            leased: state.get(1),
            dead_rows: state.get(2),
            delivery_mib: state.get(3),
            database_mib: state.get(4),
            claim_ms: (made > 0).then(|| (total_ms - self.last.claims_ms) / made as f64),
            claims: made,
            rss_mib: self.balancer.pids().map(rss_mib),
            idle_in_transaction: idle.get(0),
            idle_longest_ms: idle.get(1),
            again: self.stats.again.load(Ordering::Relaxed),
            unavailable: self.stats.unavailable.load(Ordering::Relaxed),
            day: state.get(5),
            waits_us,
            in_phase: Some(phase),
        };
        self.last = Last {
            at_s,
            acknowledged,
            claims: calls,
            claims_ms: total_ms,
        };
        writeln!(self.file, "{}", serde_json::to_string(&sample).unwrap()).unwrap();
        eprintln!(
            "soak: {at_s:>5.0} s  {:<24} {:>6.0}/s  ack {:>6.1} / {:>7.1} ms  outcome p99 {:>8.1} ms  ready {:>6} leased {:>4}  dead {:>8}  claim {:>7.2} ms  rss {:?} MiB",
            sample.phase,
            sample.per_second,
            sample.ack_p50_ms,
            sample.ack_p99_ms,
            sample.outcome_p99_ms.unwrap_or(f64::NAN),
            sample.ready,
            sample.leased,
            sample.dead_rows,
            sample.claim_ms.unwrap_or(f64::NAN),
            sample.rss_mib,
        );
        sample
    }
}

/// Of sorted microseconds.
pub(super) fn percentile_ms(sorted_us: &[u32], percent: usize) -> f64 {
    let last = sorted_us.len().saturating_sub(1);
    let at = sorted_us.len() * percent / 100;
    f64::from(sorted_us.get(at.min(last)).copied().unwrap_or(0)) / 1_000.0
}

fn rss_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}
