//! What the path costs: ingest over HTTP and handling end to end against plain inserts of the same
//! rows, in interleaved rounds of one run on a PostgreSQL of its own.
//!
//! ```text
//! cargo bench                 about 4 minutes
//! cargo bench -- --quick      about 1 minute
//! cargo bench -- --json       the same as JSON on stdout
//! cargo bench -- --statements calls per 1,000 events of every statement, instead of rates
//! cargo bench -- --pooling    each leg of the node with database.pooling = "session" and "transaction"
//! ```
//!
//! The node is the release binary as `serve` runs it, log lines included. Every leg is checked:
//! as many rows as acknowledged, every event booked once.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the result goes to stdout, the progress to stderr"
)]

mod support;

use anyhow::{Context as _, Result, bail};

use support::legs::{Leg, Legs, Sample};
use support::postgres::Postgres;
use support::report::{self, Run};
use support::{machine, statements};

/// How long and how often.
struct Plan {
    rounds: usize,
    seconds: u64,
    json: bool,
    statements: bool,
    pooling: bool,
}

impl Plan {
    fn of_arguments() -> Result<Self> {
        let mut plan = Self {
            rounds: 5,
            seconds: 5,
            json: false,
            statements: false,
            pooling: false,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => (plan.rounds, plan.seconds) = (3, 2),
                "--json" => plan.json = true,
                "--statements" => plan.statements = true,
                "--pooling" => plan.pooling = true,
                "--rounds" => {
                    let rounds = arguments.next().context("--rounds needs a number")?;
                    plan.rounds = rounds.parse().context("--rounds needs a number")?;
                }
                // Given by cargo.
                "--bench" => {}
                other => {
                    bail!("{other}: unknown; --quick, --json, --statements, --pooling, --rounds N")
                }
            }
        }
        Ok(plan)
    }
}

fn main() -> Result<()> {
    let plan = Plan::of_arguments()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(run(&plan))
}

async fn run(plan: &Plan) -> Result<()> {
    let postgres = Postgres::start(plan.statements).await?;
    let mut legs = Legs::new(postgres, plan.seconds)?;
    if plan.statements {
        return statements::print(&mut legs).await;
    }
    let leg_list = if plan.pooling {
        Legs::of_pooling()
    } else {
        legs.list()
    };
    let mut rounds: Vec<Vec<(Leg, Sample)>> = Vec::new();
    for round in 1..=plan.rounds {
        let mut samples = Vec::new();
        for leg in &leg_list {
            let sample = legs
                .run(*leg)
                .await
                .with_context(|| format!("round {round}, {}", leg.name()))?;
            eprintln!("round {round}  {:<34} {}", leg.name(), sample.line());
            samples.push((*leg, sample));
        }
        rounds.push(samples);
    }
    let run = Run {
        machine: machine::describe(&legs.postgres)?,
        seconds: plan.seconds,
        rounds,
    };
    if plan.json {
        println!("{:#}", report::json(&run));
    } else {
        print!("{}", report::table(&run));
    }
    Ok(())
}
