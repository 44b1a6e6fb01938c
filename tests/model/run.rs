//! Runs the checker and says what it found.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _};

use crate::guards::{Guard, Mutant};
use crate::model::{Action, Core};
use crate::scope::Scope;

/// A counterexample. Breadth first, so there is none with fewer steps.
pub(crate) struct Found {
    pub(crate) property: &'static str,
    pub(crate) trace: Vec<Action>,
}

/// An exploration.
pub(crate) struct Run {
    scope: Scope,
    states: usize,
    transitions: usize,
    depth: usize,
    took: Duration,
    broken: Vec<Found>,
    /// What the scope must reach and did not.
    missed: Vec<&'static str>,
}

fn check(scope: Scope, removed: &[Guard], until: HasDiscoveries, steps: Option<usize>) -> Run {
    let began = Instant::now();
    // One thread: breadth first in order, so that the first counterexample is a shortest one.
    let checker = Core::new(scope, removed)
        .checker()
        .finish_when(until)
        .threads(1)
        // States count, not steps; 0 is no limit.
        .target_max_depth(steps.map_or(0, |steps| steps + 2))
        .spawn_bfs()
        .join();
    let mut found = checker.discoveries();
    let (mut broken, mut missed) = (Vec::new(), Vec::new());
    for property in checker.model().properties() {
        match (property.expectation, found.remove(property.name)) {
            (Expectation::Sometimes, None) => missed.push(property.name),
            (Expectation::Always, Some(path)) => {
                let mut trace = path.into_vec();
                broken.push(Found {
                    property: property.name,
                    trace: trace.drain(..).filter_map(|(_, action)| action).collect(),
                });
            }
            _ => {}
        }
    }
    Run {
        scope,
        states: checker.unique_state_count(),
        transitions: checker.state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        broken,
        missed,
    }
}

/// Explores all of a scope, every guard in place.
pub(crate) fn explore(scope: Scope) -> Run {
    check(scope, &[], HasDiscoveries::AnyFailures, None)
}

/// A shortest counterexample to one property, without some guards, of at most so many steps.
pub(crate) fn breaks(
    scope: Scope,
    removed: &[Guard],
    property: &'static str,
    steps: Option<usize>,
) -> Option<Found> {
    let until = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let run = check(scope, removed, until, steps);
    run.broken
        .into_iter()
        .find(|found| found.property == property)
}

impl Run {
    /// Panics when a property is broken or something was not reached, with the trace; `again` is the
    /// command that repeats it.
    pub(crate) fn must_hold(&self, again: &str) {
        if let Some(Found { property, trace }) = self.broken.first() {
            let mut steps = String::new();
            for (n, step) in trace.iter().enumerate() {
                writeln!(steps, "{:>3}. {step:?}", n + 1).unwrap();
            }
            panic!(
                "scope {}: \"{property}\" is broken after {} steps\n{steps}{again}",
                self.scope.name,
                trace.len()
            );
        }
        assert!(
            self.missed.is_empty(),
            "scope {}: never reached: {:?}\n{again}",
            self.scope.name,
            self.missed
        );
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scope,
            states,
            transitions,
            depth,
            took,
            ..
        } = self;
        write!(
            f,
            "{}: {states} states, {transitions} transitions, longest path {depth}, {took:.1?}",
            scope.name
        )
    }
}

/// Scopes, bounds, sizes.
pub(crate) fn scopes_table(runs: &[Run]) -> String {
    let mut table = "| scope | world | bounds | states | transitions | longest path | time |\n| --- | --- | --- | ---: | ---: | ---: | ---: |\n".to_owned();
    for run in runs {
        let bounds = run.scope.bounds;
        let words: Vec<String> = [
            (bounds.deaths, "process death"),
            (bounds.pauses, "pause"),
            (bounds.cuts, "cut commit"),
            (bounds.restarts, "database restart"),
            (bounds.failovers, "failover"),
            (bounds.give_backs, "lease given back"),
            (bounds.replays, "replay"),
            (bounds.purges, "payload dropped"),
            (bounds.probes, "probe"),
            (bounds.decisions, "person's decision"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{word} {count}"))
        .collect();
        writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {:.0} s |",
            run.scope.name,
            run.scope.about,
            words.join(", "),
            run.states,
            run.transitions,
            run.depth,
            run.took.as_secs_f64()
        )
        .unwrap();
    }
    table
}

/// Guards, what breaks without each, after how many steps.
pub(crate) fn guards_table(found: &[(&Mutant, Option<Found>)]) -> String {
    let mut table =
        "| without | scope | what breaks | steps |\n| --- | --- | --- | ---: |\n".to_owned();
    for (mutant, found) in found {
        let mut with = String::new();
        for guard in mutant.with {
            write!(with, ", `{guard:?}`").unwrap();
        }
        let (property, steps) = match found {
            Some(found) => (found.property, found.trace.len().to_string()),
            None => ("nothing", "-".to_owned()),
        };
        writeln!(
            table,
            "| `{:?}`{with} | {} | {property} | {steps} |",
            mutant.guard, mutant.scope
        )
        .unwrap();
    }
    table
}
