//! What is measured, one leg at a time.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use oncehook::domain::{Secret, SecretText};
use oncehook::provider::{self, Options, Provider, Request};

use super::load::{self, Answered, Pace, as_f64};
use super::node::Node;
use super::postgres::Postgres;
use super::stripe::{self, Sender, Signed};
use super::{cpu, pgbench};

/// Requests before the clock starts: connections, prepared statements, caches.
const WARM_UP: usize = 1_000;

/// Requests made ahead for a second of closed loop; the leg ends early when a machine is faster.
const PER_SECOND_MAX: usize = 60_000;

/// Rate of the paced leg: well below what two cores can do.
const PACED_PER_SECOND: u32 = 4_000;

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leg {
    /// Plain inserts by so many clients.
    Plain(usize),
    /// Over HTTP with so many connections, nothing dispatched.
    Ingest(usize),
    /// The same with the handler at work, until everything is booked.
    EndToEnd(usize),
    /// As `Ingest` with `pooling = "transaction"`, without a pooler.
    IngestLent(usize),
    /// As `EndToEnd` with it.
    EndToEndLent(usize),
    /// End to end at a fixed rate.
    Paced(u32),
    /// Verifying and reading on one thread, without HTTP and store.
    Unwrap,
}

impl Leg {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Plain(clients) => format!("plain inserts, {clients} clients"),
            Self::Ingest(connections) => format!("ingest, {connections} connections"),
            Self::EndToEnd(connections) => format!("end to end, {connections} connections"),
            Self::IngestLent(connections) => format!("ingest, {connections}, by the transaction"),
            Self::EndToEndLent(connections) => {
                format!("end to end, {connections}, by the transaction")
            }
            Self::Paced(rate) => format!("end to end, {rate}/s offered"),
            Self::Unwrap => "verify and read only, 1 thread".to_owned(),
        }
    }
}

/// Processor time per event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    pub(crate) node: f64,
    pub(crate) postgres: f64,
    pub(crate) load: f64,
}

/// One measurement of a leg.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    /// To the answer, in milliseconds.
    pub(crate) ack_p50: Option<f64>,
    pub(crate) ack_p99: Option<f64>,
    /// From the ingest transaction to the outcome, in milliseconds.
    pub(crate) handled_p50: Option<f64>,
    pub(crate) handled_p99: Option<f64>,
    /// Microseconds.
    pub(crate) cpu: Option<Cpu>,
    /// Paced: share of requests that were sent late.
    pub(crate) late: Option<f64>,
}

impl Sample {
    /// For the progress.
    pub(crate) fn line(&self) -> String {
        let pair = |words: &str, pair: (Option<f64>, Option<f64>)| match pair {
            (Some(p50), Some(p99)) => format!("  {words} {p50:.1}/{p99:.1} ms"),
            (Some(average), None) => format!("  {words} {average:.1} ms"),
            _ => String::new(),
        };
        let cpu = self.cpu.map_or(String::new(), |cpu| {
            format!(
                "  CPU {:.0} + {:.0} + {:.0} us",
                cpu.node, cpu.postgres, cpu.load
            )
        });
        let late = match self.late {
            Some(late) if late > 0.01 => format!("  {:.0} % sent late", late * 100.0),
            _ => String::new(),
        };
        format!(
            "{:>7.0}/s{}{}{cpu}{late}",
            self.per_second,
            pair("answer", (self.ack_p50, self.ack_p99)),
            pair("outcome", (self.handled_p50, self.handled_p99)),
        )
    }
}

/// Runs legs.
pub(crate) struct Legs {
    pub(crate) postgres: Postgres,
    pgbench: Option<PathBuf>,
    folder: tempfile::TempDir,
    sender: Sender,
    seconds: u64,
}

/// Processor time so far.
struct Clocks {
    node: Option<Duration>,
    postgres: Option<Duration>,
    load: Option<Duration>,
}

impl Legs {
    pub(crate) fn new(postgres: Postgres, seconds: u64) -> Result<Self> {
        let pgbench = pgbench::find(postgres.cluster.binaries().dir());
        Ok(Self {
            postgres,
            pgbench,
            folder: tempfile::tempdir()?,
            sender: Sender::new(),
            seconds,
        })
    }

    /// Every leg of a round, the yardstick in between.
    pub(crate) fn list(&self) -> Vec<Leg> {
        let mut legs = vec![
            Leg::Plain(16),
            Leg::Ingest(16),
            Leg::Plain(64),
            Leg::Ingest(64),
            Leg::EndToEnd(64),
            Leg::Paced(PACED_PER_SECOND),
            Leg::Unwrap,
        ];
        if self.pgbench.is_none() {
            eprintln!("no pgbench beside PostgreSQL or on PATH: plain inserts are left out");
            legs.retain(|leg| !matches!(leg, Leg::Plain(_)));
        }
        legs
    }

    /// What sessions that are lent cost, leg by leg.
    pub(crate) fn of_pooling() -> Vec<Leg> {
        vec![
            Leg::Ingest(1),
            Leg::IngestLent(1),
            Leg::Ingest(16),
            Leg::IngestLent(16),
            Leg::Ingest(64),
            Leg::IngestLent(64),
            Leg::EndToEnd(64),
            Leg::EndToEndLent(64),
        ]
    }

    pub(crate) async fn run(&mut self, leg: Leg) -> Result<Sample> {
        match leg {
            Leg::Plain(clients) => self.plain(clients).await,
            Leg::Ingest(connections) => {
                let node = self.node("session", false).await?;
                self.http(node, connections, Pace::Closed, false).await
            }
            Leg::IngestLent(connections) => {
                let node = self.node("transaction", false).await?;
                self.http(node, connections, Pace::Closed, false).await
            }
            Leg::EndToEnd(connections) => {
                let node = self.node("session", true).await?;
                self.http(node, connections, Pace::Closed, true).await
            }
            Leg::EndToEndLent(connections) => {
                let node = self.node("transaction", true).await?;
                self.http(node, connections, Pace::Closed, true).await
            }
            Leg::Paced(rate) => {
                let node = self.node("session", true).await?;
                let pace = Pace::PerSecond(f64::from(rate));
                self.http(node, 64, pace, true).await
            }
            Leg::Unwrap => self.unwrap(),
        }
    }

    async fn plain(&mut self, clients: usize) -> Result<Sample> {
        let program = self.pgbench.as_deref().context("no pgbench")?;
        self.postgres.reset().await?;
        let before = self.clocks(None);
        let inserted = pgbench::run(
            program,
            &self.postgres,
            self.folder.path(),
            clients,
            self.seconds,
        )?;
        let cpu = self.clocks(None).per_event(&before, inserted.count);
        for table in ["oncehook.request", "oncehook.delivery"] {
            self.postgres.expect_rows(table, inserted.count).await?;
        }
        Ok(Sample {
            per_second: inserted.per_second,
            ack_p50: Some(ms(inserted.average)),
            cpu,
            ..Sample::default()
        })
    }

    async fn http(
        &mut self,
        node: Node,
        connections: usize,
        pace: Pace,
        dispatch: bool,
    ) -> Result<Sample> {
        let warm = self.send(&node, connections, WARM_UP).await?;
        if dispatch {
            self.postgres.until_handled().await?;
        }
        let since = self.postgres.now().await?;
        // Made before the clocks are read.
        let requests = self.requests(pace, None)?;
        let before = self.clocks(Some(&node));
        let time = self.time(pace);
        let answered = Self::send_these(&node, connections, pace, requests, time).await?;
        let mut sample = Sample {
            per_second: as_f64(answered.count) / answered.elapsed.as_secs_f64(),
            ack_p50: Some(ms(answered.percentile(50))),
            ack_p99: Some(ms(answered.percentile(99))),
            late: matches!(pace, Pace::PerSecond(_))
                .then(|| as_f64(answered.late) / as_f64(answered.count)),
            ..Sample::default()
        };
        if dispatch {
            self.postgres.until_handled().await?;
        }
        sample.cpu = self.clocks(Some(&node)).per_event(&before, answered.count);
        node.stop()?;
        let count = warm.count + answered.count;
        self.postgres.expect_rows("oncehook.request", count).await?;
        if dispatch {
            let handled = self.postgres.handled_since(since).await?;
            self.postgres.expect_rows("app.ledger", count).await?;
            sample.per_second = as_f64(answered.count) / handled.elapsed.as_secs_f64();
            sample.handled_p50 = Some(ms(handled.p50));
            sample.handled_p99 = Some(ms(handled.p99));
        } else {
            self.postgres
                .expect_rows("oncehook.delivery", count)
                .await?;
        }
        Ok(sample)
    }

    /// Exactly `count` events end to end, for the statement counts.
    pub(crate) async fn exactly(
        &mut self,
        node: &Node,
        connections: usize,
        count: usize,
    ) -> Result<()> {
        let answered = self.send(node, connections, count).await?;
        if answered.count != count {
            bail!("{} of {count} were answered in time", answered.count);
        }
        self.postgres.until_handled().await
    }

    /// A node on empty tables, with its handler at work or without.
    pub(crate) async fn node(&self, pooling: &str, dispatch: bool) -> Result<Node> {
        self.postgres.reset().await?;
        let url = self.postgres.url();
        Node::start(self.folder.path(), &url, pooling, dispatch)
    }

    async fn send(&mut self, node: &Node, connections: usize, count: usize) -> Result<Answered> {
        let requests = self.requests(Pace::Closed, Some(count))?;
        let time = Duration::from_mins(1);
        Self::send_these(node, connections, Pace::Closed, requests, time).await
    }

    fn requests(&mut self, pace: Pace, count: Option<usize>) -> Result<stripe::Requests> {
        let seconds = usize::try_from(self.seconds)?;
        let count = count.unwrap_or(match pace {
            Pace::Closed => PER_SECOND_MAX * seconds,
            Pace::PerSecond(_) => usize::try_from(PACED_PER_SECOND)? * seconds,
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(self.sender.requests(count, now.as_secs()))
    }

    fn time(&self, pace: Pace) -> Duration {
        match pace {
            Pace::Closed => Duration::from_secs(self.seconds),
            // Every prepared request is sent, also when late.
            Pace::PerSecond(_) => Duration::from_secs(self.seconds * 10),
        }
    }

    async fn send_these(
        node: &Node,
        connections: usize,
        pace: Pace,
        requests: stripe::Requests,
        time: Duration,
    ) -> Result<Answered> {
        let address = node.address;
        tokio::task::spawn_blocking(move || load::run(address, connections, requests, time, pace))
            .await?
    }

    fn clocks(&self, node: Option<&Node>) -> Clocks {
        Clocks {
            node: match node {
                Some(node) => cpu::of_process(node.pid()),
                None => Some(Duration::ZERO),
            },
            postgres: cpu::of_family(self.postgres.pid),
            load: cpu::of_self(),
        }
    }

    fn unwrap(&mut self) -> Result<Sample> {
        let stripe = provider::build("stripe", &Options::default())?;
        let secrets = [Secret {
            label: "a".to_owned(),
            key: stripe.key(&SecretText::new(stripe::SECRET), true)?,
            until: None,
        }];
        let now = Timestamp::now();
        let at_s = u64::try_from(now.as_second())?;
        let events: Vec<_> = (0..2_000)
            .map(|_| {
                let Signed { body, signature } = self.sender.signed(at_s);
                (stripe::headers(&signature), body)
            })
            .collect();
        let began = Instant::now();
        let mut count = 0;
        while began.elapsed() < Duration::from_millis(500) {
            for (headers, body) in &events {
                count += read(stripe.as_ref(), headers, body, &secrets, now)?;
            }
        }
        Ok(Sample {
            per_second: as_f64(count) / began.elapsed().as_secs_f64(),
            ..Sample::default()
        })
    }
}

fn read(
    provider: &dyn Provider,
    headers: &provider::Headers,
    body: &[u8],
    secrets: &[Secret],
    now: Timestamp,
) -> Result<usize> {
    let request = Request {
        method: "POST",
        target: "/webhooks/stripe",
        headers,
        body,
    };
    let verified = provider
        .verify(&request, secrets, now)
        .map_err(|refusal| anyhow::anyhow!("refused: {}", refusal.code()))?;
    Ok(black_box(provider.unwrap(&request, &verified)).len())
}

impl Clocks {
    fn per_event(&self, before: &Self, count: usize) -> Option<Cpu> {
        let spent = |now: Option<Duration>, before: Option<Duration>| {
            Some(now?.saturating_sub(before?).as_secs_f64() * 1e6 / as_f64(count.max(1)))
        };
        Some(Cpu {
            node: spent(self.node, before.node)?,
            postgres: spent(self.postgres, before.postgres)?,
            load: spent(self.load, before.load)?,
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
