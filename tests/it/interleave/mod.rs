//! Every order of statements of two and three sessions on a real PostgreSQL.
//!
//! The sessions run the product's own code (`engine::turns`): the batch writer, the claim, the
//! settle transaction, the reaper, replay. Their connections lead through a gate each ([`step`]),
//! which holds every statement until the scheduler ([`explore`]) lets it go. A scenario makes a
//! fresh state per order, says what each session does, and what must hold in the end, whatever the
//! order; the invariants of every scenario are in [`stage`].
//!
//! In the suite the small scenarios run in full, the others with at most so many switches away from
//! a session that could have gone on. `just interleave` runs every scenario as far as is worth its
//! time, most of them in full:
//!
//! - `ONCEHOOK_INTERLEAVE=<name>`: only scenarios whose name begins with this.
//! - `ONCEHOOK_SWITCHES=<n>`: at most so many switches in each that the suite does not run in full.
//! - `ONCEHOOK_ORDER=<scenario>:<order>`: one order, as a failure prints it, in the suite's test. A test
//!   that has no such scenario fails, and so does an order that cannot be followed.

mod claim;
mod explore;
mod ingest;
mod lanes;
mod replay;
mod settle;
mod stage;
mod step;

use std::process::Command;

use explore::{Bound, Explored};

/// How much of a scenario is run.
#[derive(Debug, Clone, Copy)]
enum Depth {
    /// What the suite has time for.
    Quick,
    Full,
}

impl Depth {
    fn bound(self, quick: u32, full: Bound) -> Bound {
        match self {
            Self::Quick => Some(quick),
            Self::Full => match std::env::var("ONCEHOOK_SWITCHES") {
                Ok(switches) => Some(switches.parse().unwrap()),
                Err(_) => full,
            },
        }
    }
}

/// Whether `ONCEHOOK_INTERLEAVE` leaves this scenario in.
fn wanted(name: &str) -> bool {
    std::env::var("ONCEHOOK_INTERLEAVE").map_or(true, |start| name.starts_with(&start))
}

/// A test of the suite per scenario, and one that runs them all in full. Behind each stands how many
/// orders there are, in the suite and in full, one number for each of its variants: a scenario that
/// explores less than it did fails.
macro_rules! scenarios {
    ($($name:ident: $scenario:path, $quick:expr, $full:expr;)*) => {
        /// Name, orders in the suite, orders in full.
        const SCENARIOS: &[(&str, &[u64], &[u64])] = &[$((stringify!($name), &$quick, &$full),)*];

        $(
            #[tokio::test]
            async fn $name() {
                let explored = $scenario(stringify!($name), Depth::Quick).await;
                counted(stringify!($name), &explored, Some(&$quick));
            }
        )*

        #[tokio::test]
        #[ignore = "long: just interleave"]
        async fn every_order() {
            let bounded = std::env::var("ONCEHOOK_SWITCHES").is_ok();
            $(
                if wanted(stringify!($name)) {
                    let explored = $scenario(stringify!($name), Depth::Full).await;
                    let orders: &[u64] = &$full;
                    counted(stringify!($name), &explored, (!bounded).then_some(orders));
                }
            )*
        }
    };
}

scenarios! {
    ingest_same_key: ingest::same_key, [4], [4];
    ingest_three_of_one_key: ingest::three_of_one_key, [48], [540];
    ingest_other_content: ingest::other_content, [4], [4];
    ingest_crossed_keys: ingest::crossed_keys, [10], [10];
    ingest_abort_of_one: ingest::abort_of_one, [27, 15], [245, 23];
    claim_same_rows: claim::same_rows, [84], [2_028];
    claim_same_suspect: claim::same_suspect, [54], [1_056];
    claim_given_back_late: claim::given_back_late, [17], [17];
    claim_within_a_cap: claim::within_a_cap, [14], [20];
    settle_and_reaper: settle::and_reaper, [23], [23];
    settle_reaper_and_successor: settle::reaper_and_successor, [70], [2_880];
    settle_after_the_lease: settle::after_the_lease, [56], [56];
    settle_one_lease_twice: settle::one_lease_twice, [10], [10];
    settle_commit_cut_off: settle::commit_cut_off, [52, 55], [955, 1_167];
    settle_crossed_rows: settle::crossed_rows, [77], [1_047];
    settle_no_partition: settle::no_partition, [26], [1_394];
    replay_twice: replay::twice, [12], [12];
    replay_expected_run: replay::expected_run, [92], [3_036];
    replay_and_settle: replay::and_settle, [62], [3_863];
    replay_missing: replay::missing, [20], [475];
    replay_payload_dropped: replay::payload_dropped, [95], [657];
    lane_two_inserts: lanes::two_inserts, [40], [182];
    lane_insert_against_end: lanes::insert_against_end, [78], [1_882];
    lane_insert_against_promotion: lanes::insert_against_promotion, [99], [8_301];
    lane_insert_against_not_yet: lanes::insert_against_not_yet, [87], [2_793];
    lane_replay_against_end: lanes::replay_against_end, [146], [592];
}

/// All orders were run, or the one that was asked for.
fn counted(name: &str, explored: &[Explored], orders: Option<&[u64]>) {
    if let Some((scenario, word)) = explore::asked() {
        let found = explored.iter().any(|e| matches!(e, Explored::Asked));
        assert!(
            found,
            "ONCEHOOK_ORDER={scenario}:{word} is of no scenario of {name}: a failure prints its test beside it"
        );
        return;
    }
    let counts = explored.iter().filter_map(|explored| match explored {
        Explored::All(count) => Some(count.orders),
        _ => None,
    });
    let counts: Vec<u64> = counts.collect();
    let orders = orders.unwrap_or(&counts);
    assert_eq!(
        counts, orders,
        "{name} has explored other orders than it did"
    );
}

#[test]
fn the_page_has_the_numbers_of_orders() {
    let page = include_str!("../../../docs/proof/interleavings.md");
    let shown = |orders: &[u64]| {
        let numbers = orders.iter().map(|n| match n {
            1_000.. => format!("{},{:03}", n / 1_000, n % 1_000),
            n => n.to_string(),
        });
        numbers.collect::<Vec<_>>().join(" + ")
    };
    let (mut quick_sum, mut full_sum) = (0, 0);
    for (name, quick, full) in SCENARIOS {
        let start = format!("| `{name}` |");
        let row = page.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("no row for {name}"));
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        for (cell, orders) in cells[3..].iter().zip([quick, full]) {
            let (numbers, _) = cell.split_once(", ").unwrap();
            // A bound follows; thousands have a comma and no blank.
            assert_eq!(numbers.trim(), shown(orders), "{row}");
        }
        quick_sum += quick.iter().sum::<u64>();
        full_sum += full.iter().sum::<u64>();
    }
    let together = format!(
        "Together {} orders in the suite and {} by the command.",
        shown(&[quick_sum]),
        shown(&[full_sum])
    );
    assert!(page.contains(&together), "{together}");
}

/// An order that was asked for is run to the letter, or the test fails.
#[test]
fn an_order_that_is_not_there_is_no_success() {
    let run = |order: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "interleave::ingest_same_key"])
            .env("ONCEHOOK_ORDER", order)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let (passes, said) = run("ingest_same_key:AABBBB");
    assert!(passes, "{said}");
    for (order, why) in [
        (
            "ingest_same_kay:AABBBB",
            "is of no scenario of ingest_same_key",
        ),
        (
            "ingest_other_content:AABBBB",
            "is of no scenario of ingest_same_key",
        ),
        ("ingest_same_key:AABB", "cannot be followed to its end"),
        ("ingest_same_key:AABBBBB", "cannot be followed to its end"),
        ("ingest_same_key:AAC", "C cannot go on here"),
        ("ingest_same_key:A1", "1 cannot go on here"),
    ] {
        let (passes, said) = run(order);
        assert!(!passes && said.contains(why), "{order}: {said}");
    }
}
