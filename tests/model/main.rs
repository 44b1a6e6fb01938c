//! A model of the core, explored state by state with [stateright].
//!
//! The core is what stands between a request's bytes and an outcome: ingest, dispatch, replay, and the
//! faults they are made for. Read on in this order:
//!
//! | file | what |
//! | --- | --- |
//! | `scope.rs` | the worlds that are explored, and their bounds |
//! | `state.rs` | what a state is made of |
//! | `model.rs` | the actions |
//! | `ingest.rs`, `dispatch.rs` with `settle.rs`, `uncertain.rs`, `world.rs` | what each action does; the heads say for which statement or function of the product it stands |
//! | `lanes.rs`, `newer.rs`, `emit.rs`, `pause.rs`, `operations.rs`, explored by `small.rs` | worlds of their own: the statements of one lane; older and newer events; an emitted event; a pause; the key of an operation |
//! | `properties.rs` | what must hold always, what must be reached |
//! | `guards.rs` | the guards, and what breaks without each |
//! | `run.rs` | the checker, its tables |
//!
//! A transaction is one action where the product's statements inside it see nothing that another
//! could change, and several where they do. What a delivery becomes is decided by the product's own
//! `domain::delivery::next`, what a probe says of an uncertain one by `domain::uncertain::probed`.
//!
//! **Liveness.** Claims and ids are counted and never reset, faults and commands are bounded: no state
//! comes twice on a path, and since the states are finitely many, every path ends. The property "rest
//! means done" says that none ends with work left over, where faults and commands are not counted
//! upon: a state in which only they could help is one that is stuck. (stateright's `eventually`
//! takes a fault that may still come for progress, so it is not used.)
//!
//! **Guards.** `no_guard_is_decoration` takes out each guard and demands a counterexample. Where
//! another guard stands in front, both are taken out, and it is shown that the second one alone saves
//! the property.
//!
//! Options of `just model` (`cargo test --release --test model -- --ignored --nocapture`):
//! `MODEL_MORE`, by how much every bound of faults grows (default 1); `MODEL_SCOPE`, one scope only.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "in a test, helpers included, a broken expectation is a failure with a place"
)]

mod dispatch;
mod emit;
mod guards;
mod ingest;
mod lanes;
mod model;
mod newer;
mod operations;
mod pause;
mod properties;
mod run;
mod scope;
mod settle;
mod small;
mod state;
mod uncertain;
mod world;

use guards::{Guard, MUTANTS, Mutant};
use run::{Found, Run, breaks, explore};
use scope::{SCOPES, Scope};

/// A test per scope: they run side by side.
macro_rules! holds {
    ($($test:ident $scope:literal;)*) => {
        $(#[test]
        fn $test() {
            let run = explore(Scope::named($scope));
            eprintln!("{run}");
            run.must_hold(concat!("cargo test --test model -- ", stringify!($test)));
        })*

        #[test]
        fn every_scope_has_its_test() {
            assert_eq!([$($scope),*], SCOPES.map(|scope| scope.name));
        }
    };
}

holds! {
    ingest_holds "ingest";
    dispatch_holds "dispatch";
    http_holds "http";
    probe_holds "probe";
    hold_holds "hold";
    given_up_holds "given-up";
    poison_holds "poison";
    replay_holds "replay";
    failover_holds "failover";
    failover_sync_holds "failover-sync";
    whole_holds "whole";
}

#[test]
fn no_guard_is_decoration() {
    let found: Vec<_> = MUTANTS
        .iter()
        .map(|mutant| (mutant, without(mutant)))
        .collect();
    eprintln!("{}", run::guards_table(&found));
    let decoration: Vec<Guard> = found
        .iter()
        .filter(|(_, found)| found.is_none())
        .map(|(mutant, _)| mutant.guard)
        .collect();
    assert!(
        decoration.is_empty(),
        "without these nothing breaks: {decoration:?}\ncargo test --test model -- no_guard_is_decoration"
    );
}

#[test]
fn a_second_line_holds_where_the_first_is_gone() {
    for mutant in MUTANTS.iter().filter(|mutant| !mutant.with.is_empty()) {
        // As far as its absence needs to show, and some steps more: without its first line the product
        // may go round for ever.
        let steps = without(mutant).unwrap().trace.len() + 3;
        let found = breaks(
            Scope::named(mutant.scope),
            mutant.with,
            mutant.breaks,
            Some(steps),
        );
        assert!(
            found.is_none(),
            "{:?} does not save \"{}\" when {:?} is gone",
            mutant.guard,
            mutant.breaks,
            mutant.with
        );
    }
}

/// The shortest way in which a guard's absence shows.
fn without(mutant: &Mutant) -> Option<Found> {
    let removed: Vec<Guard> = mutant.with.iter().copied().chain([mutant.guard]).collect();
    breaks(Scope::named(mutant.scope), &removed, mutant.breaks, None)
}

/// Larger bounds, and the tables of docs/proof/model.md.
#[test]
#[ignore = "long: just model"]
fn with_larger_bounds() {
    let option = |name| std::env::var(name).ok();
    let more = option("MODEL_MORE").map_or(1, |more| more.parse().unwrap());
    let only = option("MODEL_SCOPE");
    let mut runs: Vec<Run> = Vec::new();
    for scope in SCOPES {
        if only.as_ref().is_some_and(|only| only != scope.name) {
            continue;
        }
        let run = explore(scope.with_more_faults(more));
        eprintln!("{run}");
        run.must_hold(&format!(
            "MODEL_MORE={more} MODEL_SCOPE={} cargo test --release --test model -- --ignored --nocapture",
            scope.name
        ));
        runs.push(run);
    }
    println!("{}", run::scopes_table(&runs));
    if only.is_none() {
        let found: Vec<_> = MUTANTS
            .iter()
            .map(|mutant| (mutant, without(mutant)))
            .collect();
        println!("{}", run::guards_table(&found));
        assert!(found.iter().all(|(_, found)| found.is_some()));
    }
}
