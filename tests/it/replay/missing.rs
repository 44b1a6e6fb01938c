//! First runs of a handler that came later: what they read, however few events fit.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use jiff::Timestamp;
use oncehook::store::{MissingOrder, MissingPage};
use oncehook::{Settings, Store};
use tokio_postgres::{Client, SimpleQueryMessage};
use uuid::Uuid;

use crate::support::inbox::every;
use crate::support::{PgProxy, TestDb, oncehook};
use crate::verify::cost::fill;

const PAGE: &str = include_str!("../../../src/store/sql/replay_missing.sql");

/// Events that a page reads at most.
const READ: u64 = 2_000;

/// So many events, and a third handler, `late`, that has had none of them.
async fn before_late(events: u64) -> TestDb {
    let db = TestDb::new().await;
    fill(&db, &events.to_string()).await;
    db.execute("INSERT INTO oncehook.handler (name, first_name) VALUES ('late', 'late')")
        .await;
    db
}

/// The same, and it has had all but the last one.
async fn all_but_the_last(events: u64) -> TestDb {
    let db = before_late(events).await;
    db.execute(
        "INSERT INTO oncehook.outcome
         SELECT id, 3, 1, 0, 'succeeded', 'handler', NULL, NULL, 1, now() FROM oncehook.event WHERE key <> (SELECT key FROM oncehook.event ORDER BY id DESC LIMIT 1);
         ANALYZE",
    )
    .await;
    db
}

fn order(dry_run: bool) -> MissingOrder {
    MissingOrder {
        handler: "late".into(),
        patterns: every(),
        since: "1960-01-01T00:00:00Z".parse().unwrap(),
        dry_run,
        reason: "handler added".into(),
        actor: "test".into(),
    }
}

async fn pages(db: &TestDb, order: &MissingOrder) -> Vec<MissingPage> {
    let store = Store::new(Settings::parse(&db.url).unwrap(), 1).unwrap();
    let (mut pages, mut after) = (Vec::new(), Uuid::nil());
    loop {
        let page = store.missing_page(order, after).await.unwrap();
        let next = page.next;
        pages.push(page);
        match next {
            Some(event) => after = event,
            None => return pages,
        }
    }
}

#[tokio::test]
async fn a_page_reads_2000_events_and_goes_on_also_where_none_fits() {
    let db = all_but_the_last(7_000).await;
    for dry_run in [true, false] {
        let pages = pages(&db, &order(dry_run)).await;
        let found: Vec<usize> = pages.iter().map(|page| page.replayed.len()).collect();
        assert_eq!(found, [0, 0, 0, 1], "dry run: {dry_run}");
        let reached: Vec<Timestamp> = pages.iter().filter_map(MissingPage::reached).collect();
        assert!(reached.is_sorted() && reached.len() == 3, "{reached:?}");
        assert_eq!(pages[3].replayed[0].key, "evt_7000");
    }
    assert_eq!(db.count("delivery WHERE handler_id = 3").await, 1);
    assert_eq!(db.count("audit").await, 1);
}

#[tokio::test]
async fn between_two_pages_no_event_is_left_out_and_none_met_twice() {
    let db = before_late(2_500).await;
    let made = pages(&db, &order(false)).await;
    let sizes: Vec<usize> = made.iter().map(|page| page.replayed.len()).collect();
    assert_eq!(sizes, [1_000, 1_000, 500]);
    let runs = made.iter().flat_map(|page| &page.replayed);
    let keys: BTreeSet<&str> = runs.map(|run| run.key.as_str()).collect();
    assert_eq!(keys.len(), 2_500);
    assert_eq!(db.count("delivery WHERE handler_id = 3").await, 2_500);
    let again = pages(&db, &order(false)).await;
    assert!(again.iter().all(|page| page.replayed.is_empty()));
}

/// Most rows that a node of the statement's plan yields or throws away, for the page behind so many events.
async fn most_rows(client: &Client, behind: u64, plan: &str) -> u64 {
    let event = async |offset: u64| {
        let sql =
            format!("SELECT id::text FROM oncehook.event ORDER BY id OFFSET {offset} LIMIT 1");
        let row = client.query_one(&sql, &[]).await.unwrap();
        row.get::<_, String>(0)
    };
    let (after, reach) = (event(behind).await, event(behind + READ - 1).await);
    let text = format!(
        "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = {plan};
         PREPARE page (int, timestamptz, uuid, bigint, uuid) AS {PAGE};
         EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE page (3, '2020-01-01', '{after}', 1000, '{reach}');
         DEALLOCATE page; COMMIT"
    );
    let answer = client.simple_query(&text).await.unwrap();
    let plan = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: serde_json::Value = serde_json::from_str(plan.unwrap()).unwrap();
    let mut nodes = vec![&plan[0]["Plan"]];
    let mut most = 0;
    while let Some(node) = nodes.pop() {
        let number = |what: &str| node[what].as_f64().unwrap_or(0.0);
        let rows = number("Actual Rows") + number("Rows Removed by Filter");
        most = most.max(
            format!("{:.0}", rows * number("Actual Loops"))
                .parse()
                .unwrap(),
        );
        nodes.extend(node["Plans"].as_array().into_iter().flatten());
    }
    most
}

#[tokio::test]
async fn a_page_looks_up_its_own_events_and_reads_no_others() {
    const EVENTS: u64 = 20_000;
    let db = all_but_the_last(EVENTS).await;
    // As many wait for the handler as there are events that it had.
    db.execute("INSERT INTO oncehook.delivery (event_id, handler_id, run_at) SELECT id, 2, 'infinity' FROM oncehook.event ON CONFLICT DO NOTHING; ANALYZE")
        .await;
    let client = db.client().await;
    for plan in ["force_custom_plan", "force_generic_plan"] {
        for behind in [0, EVENTS / 2, EVENTS - READ] {
            let most = most_rows(&client, behind, plan).await;
            assert!(
                most <= READ,
                "{plan}, behind {behind} events: {most} rows read"
            );
        }
    }
}

#[tokio::test]
async fn the_command_takes_any_time_and_says_how_far_it_is() {
    let db = all_but_the_last(12_000).await;
    let proxy = PgProxy::start(&db.url).await;
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("oncehook.toml");
    let text = format!(
        "[database]\nurl = {:?}\n[[handler]]\nname = \"late\"\nkind = \"sql\"\ncall = \"app.late\"\nevents = [\"*:*\"]\n",
        proxy.url(&db.name)
    );
    fs::write(&config, text).unwrap();
    // Far away by message, so that it takes longer than the two seconds between two remarks.
    proxy.delay(Duration::from_millis(25));
    let line = ["replay", "--missing", "--handler", "late"];
    let when = ["--since", "1960-01-01T00:00:00Z", "--reason", "added"];
    let ran = oncehook(&config, &[line, when].concat(), &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert!(
        ran.stdout.starts_with("ready: stripe evt_12000 late run 1"),
        "{}",
        ran.said()
    );
    assert!(
        ran.stderr
            .contains("ready: 0 so far; looked at what was received until 20"),
        "{}",
        ran.said()
    );
    assert!(ran.stderr.ends_with("ready: 1 event\n"), "{}", ran.said());
}
