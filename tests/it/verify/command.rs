//! The verb itself, run as cron runs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::support::{OwnCluster, Ran, Replicas, TestDb, backend_pid, oncehook};

use super::story::eventful;

/// A configuration with a source and the handler `late`, for this database.
fn config(dir: &Path, url: &str) -> PathBuf {
    let path = dir.join("oncehook.toml");
    let text = format!(
        "[database]\nurl = {url:?}\n\n\
         [[source]]\nname = \"stripe\"\nprovider = \"stripe\"\nsecrets = [{{ label = \"a\", value = \"env:VERIFY_SECRET\" }}]\n\n\
         [[handler]]\nname = \"late\"\nkind = \"sql\"\ncall = \"app.judge\"\nevents = [\"stripe:z.*\", \"stripe:a.skip\"]\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

const SECRET: [(&str, &str); 1] = [("VERIFY_SECRET", "whsec_a_secret_that_nobody_must_see")];

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|c| c["check"] == name).unwrap()
}

#[tokio::test]
async fn the_exit_code_tells_sound_doubtful_unchecked_and_broken_apart() {
    // A server that writes what it commits, so that nothing at all is left to say.
    let settings = [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("max_prepared_transactions", "2"),
    ];
    let cluster = OwnCluster::with_settings(&settings).await;
    let db = eventful(Arc::new(cluster.database().await)).await;
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &db.url);
    let verify = async |args: &[&str]| -> Ran {
        let args: Vec<&str> = ["verify"].iter().chain(args).copied().collect();
        oncehook(&config, &args, &SECRET).await
    };

    // Without the secret the handlers are not known, and all else is checked.
    let ran = oncehook(&config, &["verify", "--all", "--digests"], &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert!(
        ran.stderr.contains("`missing` is not checked"),
        "{}",
        ran.said()
    );
    assert!(
        ran.stdout.lines().all(|line| line.starts_with("OK")),
        "{}",
        ran.said()
    );

    // `late` takes a type of which one event came before.
    let ran = verify(&[]).await;
    assert_eq!(ran.code, Some(5), "{}", ran.said());
    let line = |start: &str| ran.stdout.lines().any(|line| line.starts_with(start));
    assert!(line("WARNING    missing"), "{}", ran.said());
    assert!(
        line("    stripe evt_skip late - it matches"),
        "{}",
        ran.said()
    );
    assert!(line("    oncehook show stripe evt_skip"), "{}", ran.said());
    assert!(line("OK         route"), "{}", ran.said());

    let holder = db.client().await;
    holder
        .batch_execute("BEGIN; PREPARE TRANSACTION 'left over'")
        .await
        .unwrap();
    let ran = verify(&["--json", "--patience", "0"]).await;
    assert_eq!(ran.code, Some(5), "{}", ran.said());
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["holds"], true);
    let sessions = check(&report, "sessions")["findings"].to_string();
    assert!(sessions.contains("prepared transaction of"), "{sessions}");
    holder
        .batch_execute("ROLLBACK PREPARED 'left over'")
        .await
        .unwrap();

    holder
        .batch_execute("BEGIN; LOCK TABLE oncehook.conflict")
        .await
        .unwrap();
    let ran = verify(&[]).await;
    assert_eq!(ran.code, Some(3), "{}", ran.said());
    let line = |start: &str| ran.stdout.lines().any(|line| line.starts_with(start));
    assert!(line("UNFINISHED conflict"), "{}", ran.said());
    assert!(line("    a table is locked"), "{}", ran.said());
    assert!(
        ran.stderr.contains("1 check did not finish"),
        "{}",
        ran.said()
    );
    holder.batch_execute("ROLLBACK").await.unwrap();

    db.execute("DELETE FROM oncehook.outcome WHERE run = 1")
        .await;
    let ran = verify(&["--json", "--limit", "3"]).await;
    assert_eq!(ran.code, Some(4), "{}", ran.said());
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["holds"], false);
    let route = check(&report, "route");
    assert_eq!(route["state"], "broken");
    assert_eq!(route["counted"], "events");
    assert_eq!(route["findings"].as_array().unwrap().len(), 3);
    assert!(route["found"].as_u64() > Some(3), "{route}");
    let finding = &route["findings"][0];
    assert_eq!(finding["source"], "stripe", "{finding}");
    assert!(
        finding["key"].as_str().unwrap().starts_with("evt_"),
        "{finding}"
    );
    assert!(
        finding["event_id"].is_string() && finding["handler"].is_string(),
        "{finding}"
    );
    assert!(
        ran.stderr.contains("found what must not be"),
        "{}",
        ran.said()
    );
}

#[tokio::test]
async fn a_database_that_cannot_be_asked_is_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let blank = TestDb::blank().await;
    let ran = oncehook(&config(dir.path(), &blank.url), &["verify"], &SECRET).await;
    assert_eq!(ran.code, Some(3), "{}", ran.said());
    assert!(ran.stdout.contains("`oncehook migrate`"), "{}", ran.said());

    let nobody = config(dir.path(), "postgresql://nobody@127.0.0.1:1/none");
    let ran = oncehook(&nobody, &["verify"], &SECRET).await;
    assert_eq!(ran.code, Some(3), "{}", ran.said());
    assert_eq!(ran.stdout, "");
    // A machine is told on stdout, whatever happens.
    let ran = oncehook(&nobody, &["verify", "--json"], &SECRET).await;
    assert_eq!(ran.code, Some(3), "{}", ran.said());
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["holds"], false, "{report}");
    for (field, part) in [("error", "by database.url"), ("hint", "database.url")] {
        assert!(report[field].as_str().unwrap().contains(part), "{report}");
    }

    // A table may not be read; one is gone, and a guard with it.
    let db = TestDb::new().await;
    db.execute("DROP TABLE oncehook.audit").await;
    let role = db.role("blind", "LOGIN").await;
    let other = db.url.replacen("postgres@", &format!("{role}@"), 1);
    for (url, code, reason) in [
        (&other, 3, "this role may not read a table"),
        (&db.url, 4, "a table is missing"),
    ] {
        let ran = oncehook(&config(dir.path(), url), &["verify", "--json"], &SECRET).await;
        assert_eq!(ran.code, Some(code), "{}", ran.said());
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["holds"], false, "{report}");
        assert!(ran.stdout.contains(reason), "{}", ran.said());
    }
}

/// What an auditor is given: a standby, or a role that may write nothing.
#[tokio::test]
async fn a_standby_and_a_session_that_may_not_write_can_be_asked() {
    let replicas = Replicas::asynchronous().await;
    let db = eventful(Arc::new(replicas.database().await)).await;
    replicas.until_caught_up().await;
    let standby = db.on_server(replicas.furthest().await.url());
    let dir = tempfile::tempdir().unwrap();
    let verify = async |url: &str, args: &[&str]| -> Ran {
        let args: Vec<&str> = ["verify", "--all"].iter().chain(args).copied().collect();
        oncehook(&config(dir.path(), url), &args, &SECRET).await
    };
    let name = &db.name;
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    let reads_only: [&str; 2] = [&standby.url, &db.url];
    for (url, prepare) in reads_only.iter().zip(["SELECT 1", &read_only]) {
        db.execute_outside(prepare).await;
        let ran = verify(url, &["--digests"]).await;
        // `missing` is of the configuration, `durability` of these clusters.
        assert_eq!(ran.code, Some(5), "{}", ran.said());
        let doubtful = ran
            .stdout
            .lines()
            .filter(|line| line.starts_with("WARNING"));
        let doubtful: Vec<_> = doubtful
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        assert_eq!(doubtful, ["durability", "missing"], "{}", ran.said());
        let config = config(dir.path(), url);
        let shown = oncehook(&config, &["show", "stripe", "evt_plain"], &SECRET).await;
        assert_eq!(shown.code, Some(0), "{}", shown.said());
    }

    // It finds what is broken there, and says of an event without a key what can be done.
    let writes = format!("SET default_transaction_read_only = off; {DAMAGE}");
    db.execute(&writes).await;
    replicas.until_caught_up().await;
    let ran = verify(&standby.url, &[]).await;
    assert_eq!(ran.code, Some(4), "{}", ran.said());
    let (_, unkeyed) = ran.stdout.split_once("BROKEN     event_key").unwrap();
    let (unkeyed, _) = unkeyed.split_once("\nOK ").unwrap();
    for part in [
        "evt_plain - its key is not stored",
        "put its row of event_key back",
        "the first one's id: 0",
    ] {
        assert!(unkeyed.contains(part), "{part}: {unkeyed}");
    }
    assert!(!unkeyed.contains("oncehook show"), "{unkeyed}");
}

const DAMAGE: &str = "DELETE FROM oncehook.event_key WHERE key = 'evt_plain'";

#[tokio::test]
async fn each_reason_for_a_doubt_comes_with_its_own_next_step() {
    let db = TestDb::new().await;
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &db.url);
    db.execute("INSERT INTO oncehook.schema_history (version, name) VALUES (999, 'of_tomorrow')")
        .await;
    let holder = db.client().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE oncehook.conflict")
        .await
        .unwrap();
    let ran = oncehook(&config, &["verify"], &SECRET).await;
    for part in [
        "next: verify with the oncehook that the service runs, or a newer one",
        "next: verify again when it is free; who holds it: SELECT",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.said());
    }
    // The statement finds who it is.
    let (_, who) = ran.stdout.split_once("who holds it: ").unwrap();
    let who = db.rows(who.lines().next().unwrap(), &[]).await;
    let pids: Vec<i32> = who.iter().map(|row| row.get("pid")).collect();
    assert!(pids.contains(&backend_pid(&holder).await), "{pids:?}");
}

#[tokio::test]
async fn an_error_names_the_url_that_it_is_about() {
    let db = TestDb::new().await;
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), &db.url);
    let direct =
        "pooling = \"transaction\"\ndirect_url = \"postgresql://nobody@127.0.0.1:1/none\"\n";
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replacen("\n\n", &format!("\n{direct}\n"), 1);
    std::fs::write(&path, text).unwrap();
    let ran = oncehook(&path, &["migrate"], &SECRET).await;
    assert_eq!(ran.code, Some(3), "{}", ran.said());
    for part in [
        "by database.direct_url:",
        "the database of database.direct_url",
    ] {
        assert!(ran.stderr.contains(part), "{}", ran.said());
    }
}
