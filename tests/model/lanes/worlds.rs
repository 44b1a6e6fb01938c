//! Which worlds of a lane are explored, and what breaks in them.

use crate::small;

use super::{Guard, Lane, OnUncertain};

const LANE: Lane = Lane {
    removed: None,
    deaths: 0,
    on_uncertain: None,
    not_yet: 0,
};

#[test]
fn a_lane_never_has_two_heads_and_never_gets_stuck() {
    for deaths in 0..=2 {
        small::holds("lanes", Lane { deaths, ..LANE });
    }
}

#[test]
fn a_lane_waits_for_an_uncertain_head_or_goes_on_without_it() {
    for on_uncertain in [OnUncertain::Wait, OnUncertain::Skip] {
        for deaths in 0..=1 {
            let on_uncertain = Some(on_uncertain);
            small::holds(
                "lanes",
                Lane {
                    deaths,
                    on_uncertain,
                    ..LANE
                },
            );
        }
    }
}

#[test]
fn a_head_that_waits_for_its_time_keeps_nobody_waiting() {
    for deaths in 0..=1 {
        small::holds(
            "lanes",
            Lane {
                deaths,
                not_yet: 1,
                ..LANE
            },
        );
    }
}

#[test]
fn no_guard_of_a_lane_is_decoration() {
    const OVERTAKES: &str = "nobody overtakes one of which nobody knows";
    let (wait, skip) = (Some(OnUncertain::Wait), Some(OnUncertain::Skip));
    for (guard, deaths, on_uncertain, property) in [
        (Guard::LookAfterInsert, 0, None, "rest means done"),
        (Guard::LookAfterEnd, 0, None, "rest means done"),
        (Guard::UniqueHead, 0, None, "one head per lane"),
        (Guard::ShortWait, 0, None, "rest means done"),
        (Guard::Mend, 1, None, "rest means done"),
        (Guard::UncertainIsHead, 0, wait, OVERTAKES),
        (Guard::LeavesLane, 0, skip, "rest means done"),
        (Guard::LookAfterEnd, 0, skip, "rest means done"),
    ] {
        let world = Lane {
            removed: Some(guard),
            deaths,
            on_uncertain,
            not_yet: 0,
        };
        small::breaks(world, property);
    }
    for (guard, deaths) in [
        (Guard::GiveWay, 0),
        (Guard::PassedOver, 0),
        (Guard::MendWaiting, 1),
    ] {
        let world = Lane {
            removed: Some(guard),
            deaths,
            not_yet: 1,
            ..LANE
        };
        small::breaks(world, "rest means done");
    }
}
