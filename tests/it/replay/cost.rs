//! What a bulk replay reads, wherever its cursor stands.
//!
//! `just replay-cost`, or
//! `cargo test --test it -- --ignored --exact replay::cost::over_a_million_events --nocapture`.
//! `ONCEHOOK_REPLAY_EVENTS` says how many events there are: 1,000,000 unless it is set.

use std::env;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use oncehook::domain::Ending;
use oncehook::store::bulk::{BulkOrder, RATE_MAX, ReplayFilter};
use oncehook::store::{Settings, Store};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::{OwnCluster, TestDb};
use crate::verify::cost::fill;

const PAGE: &str = include_str!("../../../src/store/sql/bulk_page.sql");

/// Events that a page reads at most, and runs that it opens.
const READ: i64 = 2_000;
const OPENED: i64 = 50;

/// One in twenty runs of `ledger` is dead, and a third handler has every event open: so many deliveries wait.
const DEAD_AND_OPEN: &str = "
UPDATE oncehook.outcome SET result = 'dead' WHERE handler_id = 1 AND get_byte(uuid_send(event_id), 15) < 13;
INSERT INTO oncehook.handler (name, first_name) VALUES ('slow', 'slow');
INSERT INTO oncehook.delivery (event_id, handler_id, run_at) SELECT id, 3, 'infinity' FROM oncehook.event;";

/// Source, type, handler and results, as the statement takes them.
const FILTERS: [(&str, &str); 5] = [
    ("dead, one source and handler", "1, NULL, 1, '{dead}'"),
    ("dead, every handler", "NULL, NULL, NULL, '{dead}'"),
    ("dead, by type", r"NULL, 'charge.%', 1, '{dead}'"),
    ("nothing fits", "NULL, NULL, 1, '{cancelled}'"),
    ("everything fits", "NULL, NULL, NULL, '{dead,succeeded}'"),
];

/// Pages of 8 KiB that a page's statement touched, and how long it took.
#[derive(Debug, Clone, Copy)]
struct Cost {
    blocks: u64,
    ms: f64,
}

/// The page behind so many events, as a node's transaction plans it: for the values at hand at first, later perhaps
/// for any.
async fn page(client: &Client, filter: &str, behind: i64, plan: &str) -> Cost {
    let event = async |offset: i64| {
        let sql =
            format!("SELECT id::text FROM oncehook.event ORDER BY id OFFSET {offset} LIMIT 1");
        let row = client.query_opt(&sql, &[]).await.unwrap();
        row.map_or("NULL".to_owned(), |row| {
            format!("'{}'", row.get::<_, &str>(0))
        })
    };
    let (after, reach) = (event(behind).await, event(behind + READ - 1).await);
    let text = format!(
        "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = {plan};
         PREPARE page (int, text, int, text[], timestamptz, timestamptz, uuid, int, bigint, timestamptz, uuid) AS {PAGE};
         EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, FORMAT JSON)
         EXECUTE page ({filter}, '2020-01-01', now(), {after}, 0, {OPENED}, now(), {reach}); DEALLOCATE page; COMMIT"
    );
    let answer = client.simple_query(&text).await.unwrap();
    let plan = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: serde_json::Value = serde_json::from_str(plan.unwrap()).unwrap();
    let (top, took) = (&plan[0]["Plan"], &plan[0]["Execution Time"]);
    let blocks = |what: &str| top[what].as_u64().unwrap();
    Cost {
        blocks: blocks("Shared Hit Blocks") + blocks("Shared Read Blocks"),
        ms: took.as_f64().unwrap(),
    }
}

const PLANS: [&str; 2] = ["force_custom_plan", "force_generic_plan"];

/// Not the whole table, not what waits, not each event once per handler: a few blocks per event that is read.
fn most(filter: &str, events: i64) -> u64 {
    // Down an index of outcomes and to their rows, twice where the planner puts a limit on the handler.
    let blocks = if filter == "everything fits" { 1 } else { 6 };
    blocks * events.unsigned_abs()
}

#[tokio::test]
async fn a_page_reads_a_few_blocks_per_event_wherever_it_is() {
    const EVENTS: i64 = 20_000;
    let db = TestDb::new().await;
    fill(&db, &EVENTS.to_string()).await;
    db.execute(DEAD_AND_OPEN).await;
    db.execute("ANALYZE").await;
    let client = db.client().await;
    for (name, filter) in FILTERS {
        for plan in PLANS {
            for behind in [0, EVENTS - READ] {
                let cost = page(&client, filter, behind, plan).await;
                assert!(
                    cost.blocks <= most(name, READ),
                    "{name}, {plan}, behind {behind} events: {cost:?}"
                );
            }
        }
    }
}

fn order(results: Vec<Ending>, handler: Option<&str>, event_type: Option<&str>) -> BulkOrder {
    BulkOrder {
        filter: ReplayFilter {
            source: None,
            event_type: event_type.map(str::to_owned),
            handler: handler.map(str::to_owned),
            results,
            since: Timestamp::UNIX_EPOCH,
            until: None,
        },
        force: true,
        verify_bytes: false,
        rate: RATE_MAX,
        anew: false,
        reason: "measured".into(),
        actor: "test".into(),
    }
}

fn median(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

#[tokio::test]
#[ignore = "long: just replay-cost"]
async fn over_a_million_events() {
    let events: i64 = env::var("ONCEHOOK_REPLAY_EVENTS").map_or(1_000_000, |n| n.parse().unwrap());
    let settings = [("shared_buffers", "512MB"), ("max_wal_size", "4GB")];
    let cluster = OwnCluster::with_settings(&settings).await;
    let db = cluster.database().await;
    let began = Instant::now();
    fill(&db, &events.to_string()).await;
    db.execute(DEAD_AND_OPEN).await;
    db.execute("VACUUM ANALYZE").await;
    eprintln!("{events} events, made in {:?}", began.elapsed());

    eprintln!("| page of | blocks: start, middle, end | ms |\n| --- | --- | --- |");
    let client = db.client().await;
    for (name, filter) in FILTERS {
        for plan in PLANS {
            let mut costs = Vec::new();
            for behind in [0, events / 2, events - READ] {
                page(&client, filter, behind, plan).await;
                let cost = page(&client, filter, behind, plan).await;
                assert!(
                    cost.blocks <= most(name, READ) * 2,
                    "{name}, {plan}, behind {behind} events: {cost:?}"
                );
                costs.push(cost);
            }
            let blocks: Vec<_> = costs.iter().map(|cost| cost.blocks.to_string()).collect();
            let times: Vec<_> = costs.iter().map(|cost| format!("{:.1}", cost.ms)).collect();
            eprintln!(
                "| {name}, {plan} | {} | {} |",
                blocks.join(", "),
                times.join(", ")
            );
        }
    }

    let store = Store::new(Settings::parse(&db.url).unwrap(), 1).unwrap();
    let dead = || vec![Ending::Dead];
    let every = vec![Ending::Dead, Ending::Succeeded];
    eprintln!("| dry run | fit | takes |\n| --- | --- | --- |");
    for (name, order) in [
        ("dead, one handler", order(dead(), Some("ledger"), None)),
        ("dead, every handler", order(dead(), None, None)),
        ("dead, by type", order(dead(), None, Some("charge.*"))),
        ("everything", order(every, None, None)),
    ] {
        let mut times = Vec::new();
        let mut fit = 0;
        for _ in 0..3 {
            let began = Instant::now();
            let counted = store.count_replays(&order.filter).await.unwrap();
            times.push(began.elapsed());
            fit = counted.iter().map(|found| found.runs).sum();
        }
        times.sort_unstable();
        eprintln!("| {name} | {fit} | {:.1?} to {:.1?} |", times[0], times[2]);
    }

    // Nothing runs what becomes ready.
    let bulk = store.start_bulk(&order(dead(), None, None)).await.unwrap();
    let began = Instant::now();
    let mut times = Vec::new();
    loop {
        let asked = Instant::now();
        let page = store.next_page(Some(bulk), &|_| Ok(())).await.unwrap();
        let page = page.expect("nobody else opens pages");
        times.push(asked.elapsed());
        if page.last {
            break;
        }
        tokio::time::sleep(page.wait).await;
    }
    let opened = store.bulk_replay(bulk).await.unwrap().replayed;
    let tenths: Vec<String> = times
        .chunks(times.len().div_ceil(10))
        .map(|tenth| format!("{:.0}", median(tenth)))
        .collect();
    eprintln!(
        "{opened} runs opened in {:?} by {} pages: median {:.0} ms, of each tenth {}",
        began.elapsed(),
        times.len(),
        median(&times),
        tenths.join(", ")
    );
}
