//! The ledger: who makes it, who says what is missing, and that nobody makes it anew by himself.

use std::fs;
use std::path::PathBuf;

use crate::crash::{QUICK, paid, put, timeline};
use crate::support::{Ran, TestDb, oncehook, until};

use super::{BOOKS, app, booking, books, install, until_booked_once};

const PASSWORD: &str = "hunter2-hunter2-hunter2";

/// A configuration file with handler `ledger` in another database.
struct File {
    path: PathBuf,
    db: TestDb,
    _dir: tempfile::TempDir,
}

impl File {
    async fn with(url: &str, call: &str) -> Self {
        let db = TestDb::new().await;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("oncehook.toml");
        let text = format!(
            "[database]\nurl = {:?}\n[listen]\npublic = \"127.0.0.1:0\"\napi = \"127.0.0.1:0\"\n\
             [[handler]]\nname = \"ledger\"\nkind = \"sql\"\ndatabase = \"env:BOOKS_URL\"\ncall = {call:?}\nevents = [\"*:*\"]\n",
            db.url
        );
        fs::write(&path, text).unwrap();
        fs::write(dir.path().join("url"), url).unwrap();
        Self {
            path,
            db,
            _dir: dir,
        }
    }

    async fn run(&self, args: &[&str]) -> Ran {
        let url = fs::read_to_string(self.path.with_file_name("url")).unwrap();
        oncehook(&self.path, args, &[("BOOKS_URL", &url)]).await
    }
}

#[tokio::test]
async fn a_missing_ledger_is_said_before_anything_starts_and_made_by_migrate() {
    let other = TestDb::blank().await;
    let file = File::with(&other.url, "app.book").await;
    for verb in [&["check", "--connect"][..], &["serve"]] {
        let ran = file.run(verb).await;
        assert_eq!(ran.code, Some(1), "{verb:?}: {ran:?}");
        let said = format!(
            "database {} of a handler has no ledger: run `oncehook migrate`",
            other.name
        );
        assert!(ran.stderr.contains(&said), "{verb:?}: {ran:?}");
        // For somebody who may.
        assert!(
            ran.stderr
                .contains("CREATE TABLE IF NOT EXISTS oncehook.applied"),
            "{ran:?}"
        );
    }
    let pending = file.run(&["migrate", "--dry-run"]).await;
    assert_eq!(pending.stdout, "pending ledger in the database of ledger\n");
    assert!(
        other
            .one::<bool>("SELECT to_regnamespace('oncehook') IS NULL")
            .await
    );
    let made = file.run(&["migrate"]).await;
    assert_eq!(
        (made.code, made.stdout.as_str()),
        (Some(0), "applied ledger in the database of ledger\n")
    );
    let again = file.run(&["migrate"]).await;
    assert_eq!(
        (again.code, again.stdout.as_str()),
        (Some(0), ""),
        "{again:?}"
    );

    let ran = file.run(&["check", "--connect"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr
            .contains("no function app.book(oncehook.delivered)"),
        "{ran:?}"
    );
    other.execute(BOOKS).await;
    let ran = file.run(&["check", "--connect"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout
            .contains("database of ledger reached: function and ledger are there"),
        "{ran:?}"
    );
    assert_eq!(
        file.db.count("handler").await,
        0,
        "nothing is registered by a look"
    );
}

#[tokio::test]
async fn a_role_without_rights_is_told_what_to_have_done_and_that_is_enough() {
    let other = TestDb::blank().await;
    let role = other
        .role("books", &format!("LOGIN PASSWORD '{PASSWORD}'"))
        .await;
    let url = other
        .url
        .replace("postgres@", &format!("{role}:{PASSWORD}@"));
    assert_ne!(url, other.url);
    let file = File::with(&url, "app.book").await;
    let ran = file.run(&["migrate"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr
            .contains(&format!("where role {role} may not make it")),
        "{ran:?}"
    );
    let grants: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("GRANT "))
        .collect();
    assert_eq!(grants.len(), 2, "{ran:?}");

    let printed = file.run(&["migrate", "--print-ledger"]).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    // Repeatable.
    other.execute(&printed.stdout).await;
    other.execute(&printed.stdout).await;
    for verb in [&["migrate"][..], &["check", "--connect"], &["serve"]] {
        let ran = file.run(verb).await;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let said = format!("role {role} may not use its ledger");
        assert!(
            ran.stderr.contains(&said) && ran.stderr.contains(grants[1]),
            "{verb:?}: {ran:?}"
        );
        assert!(!ran.said().contains(PASSWORD), "{verb:?}: {ran:?}");
    }
    other.execute(&grants.join("\n")).await;
    other
        .execute(&format!(
            "{BOOKS} GRANT USAGE ON SCHEMA app TO {role}; GRANT SELECT, INSERT ON app.ledger TO {role}"
        ))
        .await;
    for verb in [
        &["migrate"][..],
        &["check", "--connect", "--json"],
        &["check", "--connect"],
    ] {
        let ran = file.run(verb).await;
        assert_eq!(ran.code, Some(0), "{verb:?}: {ran:?}");
        assert!(!ran.said().contains(PASSWORD), "{verb:?}: {ran:?}");
    }
    let app = booking(&url).start().await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &other, "evt_1").await;
    assert!(!app.output().contains(PASSWORD));
    // Roles go with the database; what it may is of the database too.
    other.execute(&format!("DROP OWNED BY {role}")).await;
}

#[tokio::test]
async fn a_ledger_that_is_gone_is_not_made_anew_by_a_node() {
    let other = books().await;
    let app = booking(&other.url).start().await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &other, "evt_1").await;
    other
        .execute("ALTER TABLE oncehook.applied RENAME TO moved")
        .await;
    put(&app, &paid("evt_2")).await;
    until("it is said", async || {
        let tries = timeline(&app, "evt_2").await["attempts"].clone();
        tries[0]["error"]
            .as_str()
            .is_some_and(|error| error.contains("run `oncehook migrate`"))
    })
    .await;
    let there = "SELECT to_regclass('oncehook.applied') IS NOT NULL";
    assert!(!other.one::<bool>(there).await);
    assert_eq!(super::booked(&other, "evt_2").await, 0);
    other
        .execute("ALTER TABLE oncehook.moved RENAME TO applied")
        .await;
    until_booked_once(&app, &other, "evt_2").await;
    app.db.verify().await;
}

/// Rows behind every try are of no use: docs/handlers.md says which, and how they go.
#[tokio::test]
async fn old_rows_of_the_ledger_go_without_harm() {
    let other = books().await;
    let app = app("app.book", &other.url, QUICK).start().await;
    for key in ["evt_old", "evt_new"] {
        put(&app, &paid(key)).await;
        until_booked_once(&app, &other, key).await;
    }
    other
        .execute(
            "UPDATE oncehook.applied SET applied_at = now() - interval '91 days'
              WHERE effect_key = (SELECT effect_key FROM app.ledger WHERE key = 'evt_old')",
        )
        .await;
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/handlers.md")).unwrap();
    let statement = page
        .lines()
        .find(|line| line.starts_with("DELETE FROM oncehook.applied"))
        .unwrap();
    other.execute(statement).await;
    let left: Vec<String> = other
        .all("SELECT key FROM app.ledger JOIN oncehook.applied USING (effect_key)")
        .await;
    assert_eq!(left, ["evt_new"]);
    // Its webhook is known for ever, so a copy begins nothing.
    assert!(put(&app, &paid("evt_old")).await);
    put(&app, &paid("evt_behind")).await;
    until_booked_once(&app, &other, "evt_behind").await;
    until_booked_once(&app, &other, "evt_old").await;
}

#[tokio::test]
async fn two_that_install_at_once_do_not_meet() {
    let other = TestDb::blank().await;
    tokio::join!(install(&other), install(&other), install(&other));
    assert_eq!(other.count("applied").await, 0);
}
