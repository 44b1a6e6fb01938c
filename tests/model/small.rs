//! Worlds of their own: few transactions whose statements matter, and nothing else of the core.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker as _, Expectation, HasDiscoveries, Model};

/// What was found in a world.
#[derive(Debug, Default)]
pub(crate) struct Explored {
    /// Properties that do not hold, each with its path on stderr.
    pub(crate) broken: Vec<&'static str>,
    /// What was never reached.
    pub(crate) missed: Vec<&'static str>,
    pub(crate) states: usize,
}

/// Explores all of it.
pub(crate) fn explore<M>(world: M) -> Explored
where
    M: Model + Copy + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let checker = world
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .threads(1)
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let mut explored = Explored {
        states: checker.unique_state_count(),
        ..Explored::default()
    };
    for property in world.properties() {
        match (property.expectation, found.get(property.name)) {
            (Expectation::Sometimes, None) => explored.missed.push(property.name),
            (Expectation::Always, Some(path)) => {
                let actions = path.clone().into_actions();
                eprintln!("{} in {world:?}: {actions:?}", property.name);
                explored.broken.push(property.name);
            }
            _ => {}
        }
    }
    explored
}

/// Everything holds, and all that is to be reached is reached.
pub(crate) fn holds<M>(name: &str, world: M)
where
    M: Model + Copy + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let Explored {
        broken,
        missed,
        states,
    } = explore(world);
    eprintln!("{name}, {world:?}: {states} states");
    assert_eq!((broken, missed), (vec![], vec![]), "{world:?}");
}

/// The property does not hold there.
pub(crate) fn breaks<M>(world: M, property: &str)
where
    M: Model + Copy + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let broken = explore(world).broken;
    assert!(broken.contains(&property), "{world:?}: {broken:?}");
}
