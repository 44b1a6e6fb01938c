//! Migrations with several processes at once, and a service that waits for them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::support::TestDb;

/// A configuration file for a database.
fn config(dir: &Path, db: &TestDb) -> PathBuf {
    let path = dir.join("oncehook.toml");
    let listen = "[listen]\npublic = \"127.0.0.1:0\"\napi = \"127.0.0.1:0\"\n";
    std::fs::write(&path, format!("{listen}[database]\nurl = {:?}\n", db.url)).unwrap();
    path
}

/// Exit code, standard output, standard error.
async fn oncehook(verb: &str, config: &Path) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_oncehook"))
        .args([verb, "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test]
async fn four_processes_that_migrate_at_once_apply_each_migration_once() {
    let db = TestDb::blank().await;
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), &db);
    let (a, b, c, d) = tokio::join!(
        oncehook("migrate", &path),
        oncehook("migrate", &path),
        oncehook("migrate", &path),
        oncehook("migrate", &path),
    );
    let all = [a, b, c, d];
    assert!(all.iter().all(|(code, ..)| *code == Some(0)), "{all:?}");
    let applied: Vec<&str> = all
        .iter()
        .flat_map(|(_, out, _)| out.lines())
        .filter(|line| line.starts_with("applied "))
        .collect();
    assert_eq!(
        i64::try_from(applied.len()).unwrap(),
        db.count("schema_history").await,
        "{all:?}"
    );
    assert!(!applied.is_empty());
    let again = oncehook("migrate", &path).await;
    assert_eq!((again.0, again.1.as_str()), (Some(0), ""));
    assert!(again.2.contains("nothing to do"), "{again:?}");
}

#[tokio::test]
async fn serve_does_not_begin_on_a_schema_that_is_not_up_to_date() {
    let db = TestDb::blank().await;
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), &db);
    let (code, out, error) = oncehook("serve", &path).await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        error.contains("pending") && error.contains("hint:") && error.contains("migrate"),
        "{error}"
    );
    let schema = "SELECT count(*) FROM pg_namespace WHERE nspname = 'oncehook'";
    assert_eq!(db.one::<i64>(schema).await, 0, "nothing was touched");
}
