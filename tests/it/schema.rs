//! `schema.sql` is what the migrations make, and every statement fits it.

use std::path::Path;
use std::process::Command;

use oncehook::store::{Settings, ledger};

use crate::support::TestDb;

const SCHEMA: &str = include_str!("../../schema.sql");

/// Schema `oncehook` as `pg_dump` prints it, without the migrations' own history.
async fn dump(db: &TestDb) -> String {
    // Beside the server that runs, so that both are of one version.
    let bin: String = db
        .one("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
        .await;
    let url = db.url.clone();
    let output = tokio::task::spawn_blocking(move || {
        Command::new(Path::new(&bin).join("pg_dump"))
            .args(["--schema-only", "--schema=oncehook"])
            .arg("--exclude-table=oncehook.schema_history")
            .arg("--dbname")
            .arg(url)
            .output()
            .unwrap()
    })
    .await
    .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    // Newer versions guard a dump against hostile names with a word drawn at random.
    text.lines()
        .filter(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn migrating_from_nothing_equals_schema_sql() {
    let (migrated, written) = tokio::join!(TestDb::new(), TestDb::blank());
    written.execute(SCHEMA).await;
    let (migrated, written) = tokio::join!(dump(&migrated), dump(&written));
    assert!(migrated.contains("CREATE TABLE oncehook.event_key_15"));
    if let Some((is, should)) = migrated
        .lines()
        .zip(written.lines())
        .find(|(is, should)| is != should)
    {
        panic!("the migrations make\n  {is}\nwhere schema.sql has\n  {should}");
    }
    assert_eq!(migrated.lines().count(), written.lines().count());
}

#[tokio::test]
async fn every_statement_can_be_prepared() {
    let db = TestDb::new().await;
    // Some run in the database of a handler that has its own.
    let settings = Settings::parse(&db.url).unwrap();
    ledger::install(&settings).await.unwrap();
    let client = db.client().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql");
    let mut prepared = 0;
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let sql = std::fs::read_to_string(&path).unwrap();
        if let Err(error) = client.prepare(&sql).await {
            panic!("{}: {error:?}", path.display());
        }
        prepared += 1;
    }
    assert!(prepared > 30, "{prepared}");
}

/// A check counts all its findings and gives the first few. With a limit that the planner can read, it
/// took the plan that gives five rows soonest and then read them all: hours in place of three seconds
/// over half a million events.
#[test]
fn no_limit_of_a_check_chooses_its_plan() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql");
    let mut limited = 0;
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let sql = std::fs::read_to_string(&path).unwrap();
        if sql.contains("count(*) OVER () AS found") {
            let last = sql.trim_end().lines().last().unwrap_or_default();
            assert!(
                last.ends_with("LIMIT (SELECT $1::bigint)"),
                "{}: {last}",
                path.display()
            );
            limited += 1;
        }
    }
    assert!(limited > 20, "{limited}");
}

/// A plan made in a quiet hour stays in use when the burst comes: it must not read whole tables,
/// however few rows there were when they were counted.
#[tokio::test]
async fn statements_of_every_batch_read_by_key_whatever_was_counted() {
    let db = TestDb::new().await;
    let client = db.client().await;
    client
        .batch_execute(
            "SELECT oncehook.make_partitions(2);
             INSERT INTO oncehook.delivery (event_id, handler_id) VALUES (gen_random_uuid(), 1);
             INSERT INTO oncehook.event_key SELECT 1, n::text, gen_random_uuid(), decode(repeat('00', 32), 'hex'), NULL, 0, now()
               FROM generate_series(1, 40) n;
             ANALYZE oncehook.delivery, oncehook.event_key, oncehook.event, oncehook.outcome;
             SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off",
        )
        .await
        .unwrap();
    for (name, index) in [
        ("delivery_claim", "delivery_ready"),
        ("cap_lock", "handler_cap_pkey"),
        ("delivery_lock", "delivery_pkey"),
        ("delivery_finish", "delivery_pkey"),
        ("delivery_retry", "delivery_pkey"),
        ("outcome_present", "_pkey"),
        ("ingest_known", "event_key_03_pkey"),
        ("event_payloads", "_pkey"),
    ] {
        let path = format!("{}/src/store/sql/{name}.sql", env!("CARGO_MANIFEST_DIR"));
        let sql = std::fs::read_to_string(path).unwrap();
        let count = client.prepare(&sql).await.unwrap().params().len();
        let nulls = vec!["NULL"; count].join(", ");
        client
            .batch_execute(&format!("PREPARE {name} AS {sql}"))
            .await
            .unwrap();
        let plan = client
            .query(&format!("EXPLAIN EXECUTE {name}({nulls})"), &[])
            .await
            .unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        assert!(!plan.contains("Seq Scan"), "{name}:\n{plan}");
        assert!(plan.contains(index), "{name}:\n{plan}");
        if name == "delivery_claim" {
            assert!(plan.contains("Tid Scan"), "{name}:\n{plan}");
        }
        // Every lease and its dead entries.
        assert!(!plan.contains("delivery_lease"), "{name}:\n{plan}");
    }
}
