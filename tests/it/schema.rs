//! `schema.sql` is what the migrations make, and every statement fits it.

use std::path::Path;
use std::process::Command;

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
