//! Medians, ranges and ratios.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::legs::{Leg, Sample};
use super::machine::Machine;

/// Everything that was measured.
pub(crate) struct Run {
    pub(crate) machine: Machine,
    pub(crate) seconds: u64,
    pub(crate) rounds: Vec<Vec<(Leg, Sample)>>,
}

/// Numbers of all rounds.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(upper, *values.get(middle.checked_sub(1)?)?)
        } else {
            upper
        };
        Some(Self {
            median,
            min: *values.first()?,
            max: *values.last()?,
        })
    }

    fn json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

/// One quotient of two legs.
struct Ratio {
    name: &'static str,
    of: Leg,
    to: Leg,
}

/// Quotients are taken inside each round, so that a slow minute of the machine hits both sides.
const RATIOS: [Ratio; 9] = [
    Ratio {
        name: "ingest / plain inserts, 16",
        of: Leg::Ingest(16),
        to: Leg::Plain(16),
    },
    Ratio {
        name: "ingest / plain inserts, 64",
        of: Leg::Ingest(64),
        to: Leg::Plain(64),
    },
    Ratio {
        name: "ingest 64 / plain inserts 16",
        of: Leg::Ingest(64),
        to: Leg::Plain(16),
    },
    Ratio {
        name: "end to end 64 / plain inserts 16",
        of: Leg::EndToEnd(64),
        to: Leg::Plain(16),
    },
    Ratio {
        name: "end to end / ingest, 64",
        of: Leg::EndToEnd(64),
        to: Leg::Ingest(64),
    },
    Ratio {
        name: "by the transaction / session: ingest, 1",
        of: Leg::IngestLent(1),
        to: Leg::Ingest(1),
    },
    Ratio {
        name: "by the transaction / session: ingest, 16",
        of: Leg::IngestLent(16),
        to: Leg::Ingest(16),
    },
    Ratio {
        name: "by the transaction / session: ingest, 64",
        of: Leg::IngestLent(64),
        to: Leg::Ingest(64),
    },
    Ratio {
        name: "by the transaction / session: end to end, 64",
        of: Leg::EndToEndLent(64),
        to: Leg::EndToEnd(64),
    },
];

impl Run {
    fn legs(&self) -> Vec<Leg> {
        self.rounds
            .first()
            .map(|round| round.iter().map(|(leg, _)| *leg).collect())
            .unwrap_or_default()
    }

    fn spread(&self, leg: Leg, value: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        let samples = self
            .rounds
            .iter()
            .flatten()
            .filter(|(this, _)| *this == leg);
        Spread::of(samples.filter_map(|(_, sample)| value(sample)).collect())
    }

    fn ratio(&self, ratio: &Ratio) -> Option<Spread> {
        let of = |round: &[(Leg, Sample)], leg| {
            let sample = round.iter().find(|(this, _)| *this == leg);
            sample.map(|(_, sample)| sample.per_second)
        };
        let quotients = self
            .rounds
            .iter()
            .filter_map(|round| Some(of(round, ratio.of)? / of(round, ratio.to)?));
        Spread::of(quotients.collect())
    }
}

/// For people, in Markdown.
pub(crate) fn table(run: &Run) -> String {
    let Machine {
        processor,
        cores,
        memory_gib,
        load_before,
        postgresql,
        oncehook,
        commit,
    } = &run.machine;
    let mut text = format!(
        "oncehook {oncehook} ({commit}), PostgreSQL {postgresql}, {cores} x {processor}, {memory_gib} GiB; {} rounds of {} s; \
         load average (15 min) {load_before}\n\n\
         | leg | events/s | answer p50 / p99 ms | outcome p50 / p99 ms | CPU us per event: node / PostgreSQL / load |\n\
         | --- | --- | --- | --- | --- |\n",
        run.rounds.len(),
        run.seconds
    );
    for leg in run.legs() {
        let median = |value: fn(&Sample) -> Option<f64>| run.spread(leg, value).map(|s| s.median);
        let pair = |p50: fn(&Sample) -> Option<f64>, p99: fn(&Sample) -> Option<f64>| match (
            median(p50),
            median(p99),
        ) {
            (Some(p50), Some(p99)) => format!("{p50:.1} / {p99:.1}"),
            (Some(average), None) => format!("{average:.1} (mean)"),
            _ => "-".to_owned(),
        };
        let rate = run
            .spread(leg, |s| Some(s.per_second))
            .map_or("-".to_owned(), |s| {
                format!("**{:.0}** [{:.0}-{:.0}]", s.median, s.min, s.max)
            });
        let cpu = match (
            median(|s| Some(s.cpu?.node)),
            median(|s| Some(s.cpu?.postgres)),
            median(|s| Some(s.cpu?.load)),
        ) {
            (Some(node), Some(postgres), Some(load)) => {
                format!("{node:.0} / {postgres:.0} / {load:.0}")
            }
            _ => "-".to_owned(),
        };
        writeln!(
            text,
            "| {} | {rate} | {} | {} | {cpu} |",
            leg.name(),
            pair(|s| s.ack_p50, |s| s.ack_p99),
            pair(|s| s.handled_p50, |s| s.handled_p99),
        )
        .ok();
    }
    text.push_str(
        "\n| ratio of events/s, inside each round | median | range |\n| --- | --- | --- |\n",
    );
    for ratio in &RATIOS {
        if let Some(spread) = run.ratio(ratio) {
            writeln!(
                text,
                "| {} | **{:.2}** | {:.2}-{:.2} |",
                ratio.name, spread.median, spread.min, spread.max
            )
            .ok();
        }
    }
    text
}

/// For programs.
pub(crate) fn json(run: &Run) -> Value {
    let machine = &run.machine;
    let legs: Vec<Value> = run
        .legs()
        .into_iter()
        .map(|leg| {
            let spread =
                |value: fn(&Sample) -> Option<f64>| run.spread(leg, value).map(|s| s.json());
            json!({
                "leg": leg.name(),
                "events_per_second": spread(|s| Some(s.per_second)),
                "answer_p50_ms": spread(|s| s.ack_p50),
                "answer_p99_ms": spread(|s| s.ack_p99),
                "outcome_p50_ms": spread(|s| s.handled_p50),
                "outcome_p99_ms": spread(|s| s.handled_p99),
                "cpu_node_us": spread(|s| Some(s.cpu?.node)),
                "cpu_postgresql_us": spread(|s| Some(s.cpu?.postgres)),
                "cpu_load_us": spread(|s| Some(s.cpu?.load)),
            })
        })
        .collect();
    let ratios: serde_json::Map<String, Value> = RATIOS
        .iter()
        .filter_map(|ratio| Some((ratio.name.to_owned(), run.ratio(ratio)?.json())))
        .collect();
    json!({
        "machine": {
            "processor": machine.processor,
            "cores": machine.cores,
            "memory_gib": machine.memory_gib,
            "load_average_15_min": machine.load_before,
        },
        "versions": {
            "oncehook": machine.oncehook,
            "commit": machine.commit,
            "postgresql": machine.postgresql,
        },
        "rounds": run.rounds.len(),
        "seconds": run.seconds,
        "legs": legs,
        "ratios": ratios,
    })
}
