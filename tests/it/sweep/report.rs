//! What became of the points: a file of JSON lines that a later run goes on with, and the table.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::lane::Ended;
use super::point::{Cut, Kill, Point};
use super::scenario::Scenario;

/// An append-only file, one line per point.
pub(super) struct Report {
    path: PathBuf,
    file: Mutex<File>,
    /// Of the program under test: what another build passed counts for nothing.
    build: String,
}

impl Report {
    pub(super) fn open(path: &Path) -> Self {
        let file = File::options().create(true).append(true).open(path);
        let program = fs::read(env!("CARGO_BIN_EXE_oncehook")).unwrap();
        Self {
            path: path.to_owned(),
            file: Mutex::new(file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))),
            build: hex::encode(Sha256::digest(program))[..12].to_owned(),
        }
    }

    /// Records how a point ended.
    pub(super) fn add(&self, point: &Point, ended: &Result<Ended, String>, tries: u32, ms: u128) {
        let (result, why) = match ended {
            Ok(Ended::Passed) => ("passed", ""),
            Ok(Ended::NotReached) => ("not reached", ""),
            Err(why) => ("failed", why.as_str()),
        };
        let line = json!({ "point": point.to_string(), "result": result, "tries": tries, "ms": ms, "build": self.build, "why": why });
        let mut file = self.file.lock().unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// How many points met their message at a later try only.
    pub(super) fn retried(&self) -> usize {
        let lines = self.lines().into_iter();
        lines
            .filter(|line| line["result"] == "passed" && line["tries"].as_u64() > Some(1))
            .count()
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.path).unwrap();
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["build"] == self.build.as_str())
            .collect()
    }

    /// The last result of every point under this build.
    pub(super) fn results(&self) -> BTreeMap<String, String> {
        self.lines()
            .iter()
            .filter_map(|line| {
                let text = |name: &str| Some(line[name].as_str()?.to_owned());
                Some((text("point")?, text("result")?))
            })
            .collect()
    }

    /// The points that passed under this build.
    pub(super) fn passed(&self) -> HashSet<String> {
        let results = self.results().into_iter();
        results
            .filter(|(_, result)| result == "passed")
            .map(|(point, _)| point)
            .collect()
    }
}

/// Scenario by cut, with a column per kill: runs that passed of those that are there.
pub(super) fn table(points: &[Point], results: &BTreeMap<String, String>) -> String {
    let mut text = String::from(
        "| scenario | messages | cut | kill: none | own process | other node | PostgreSQL | not reached | failed |\n\
         | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let of = |scenario: &str, cut: Cut, kill: Option<Kill>, result: &str| {
        let points = points.iter().filter(|point| {
            point.scenario == scenario
                && point.cut == cut
                && kill.is_none_or(|kill| point.kill == kill)
        });
        points
            .filter(|point| {
                result.is_empty()
                    || results
                        .get(&point.to_string())
                        .is_some_and(|known| known == result)
            })
            .count()
    };
    for scenario in Scenario::ALL.map(Scenario::name) {
        let own = points.iter().filter(|point| point.scenario == scenario);
        let messages: HashSet<_> = own.map(|point| &point.spot).collect();
        if messages.is_empty() {
            continue;
        }
        for cut in Cut::ALL {
            write!(text, "| {scenario} | {} | {cut} |", messages.len()).unwrap();
            for kill in Kill::ALL {
                let all = of(scenario, cut, Some(kill), "");
                let passed = of(scenario, cut, Some(kill), "passed");
                if all == 0 {
                    text.push_str(" – |");
                } else {
                    write!(text, " {passed} / {all} |").unwrap();
                }
            }
            let count = |result| of(scenario, cut, None, result);
            writeln!(text, " {} | {} |", count("not reached"), count("failed")).unwrap();
        }
    }
    text
}
