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
//! - `ONCEHOOK_ORDER=<scenario>:<order>`: one order, as a failure prints it, in the suite's test.

mod claim;
mod explore;
mod ingest;
mod replay;
mod settle;
mod stage;
mod step;

use explore::Bound;

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

/// A test of the suite per scenario, and one that runs them all in full.
macro_rules! scenarios {
    ($($name:ident: $scenario:path,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $scenario(stringify!($name), Depth::Quick).await;
            }
        )*

        #[tokio::test]
        #[ignore = "long: just interleave"]
        async fn every_order() {
            $(
                if wanted(stringify!($name)) {
                    $scenario(stringify!($name), Depth::Full).await;
                }
            )*
        }
    };
}

scenarios! {
    ingest_same_key: ingest::same_key,
    ingest_three_of_one_key: ingest::three_of_one_key,
    ingest_other_content: ingest::other_content,
    ingest_crossed_keys: ingest::crossed_keys,
    ingest_abort_of_one: ingest::abort_of_one,
    claim_same_rows: claim::same_rows,
    claim_same_suspect: claim::same_suspect,
    claim_given_back_late: claim::given_back_late,
    claim_within_a_cap: claim::within_a_cap,
    settle_and_reaper: settle::and_reaper,
    settle_reaper_and_successor: settle::reaper_and_successor,
    settle_after_the_lease: settle::after_the_lease,
    settle_one_lease_twice: settle::one_lease_twice,
    settle_commit_cut_off: settle::commit_cut_off,
    settle_crossed_rows: settle::crossed_rows,
    settle_no_partition: settle::no_partition,
    replay_twice: replay::twice,
    replay_expected_run: replay::expected_run,
    replay_and_settle: replay::and_settle,
    replay_missing: replay::missing,
    replay_payload_dropped: replay::payload_dropped,
}
