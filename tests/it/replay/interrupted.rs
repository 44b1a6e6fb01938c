//! A bulk replay that is interrupted goes on by its number, and runs nothing twice.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::support::{Action, PgProxy, TestApp, oncehook, until};

use super::api::{post, started};
use super::{dead_letters, open, replay, runs, standing, until_booked, until_standing};

/// A command at work. Its connections lead through `url`, if one is given.
pub(super) fn spawn(app: &TestApp, url: Option<&str>, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncehook"));
    command
        .arg("--config")
        .arg(app.config())
        .args(["replay", "--reason", "again"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    if let Some(url) = url {
        command.env("ONCEHOOK_DATABASE__URL", url);
    }
    command.spawn().unwrap()
}

pub(super) const ALL: [&str; 4] = ["--all", "--since", "1h", "--yes"];

pub(super) async fn go_on(app: &TestApp, bulk: &str) -> crate::support::Ran {
    let line = ["replay", "--continue", bulk, "--reason", "go on"];
    oncehook(&app.config(), &line, &[]).await
}

/// What a dead process had leased is due now: a test need not wait for it.
pub(super) async fn lease_is_over(app: &TestApp) {
    app.db
        .execute("UPDATE oncehook.bulk_replay SET next_at = clock_timestamp()")
        .await;
}

/// How many new runs the audit has of a bulk, and of how many (event, handler).
pub(super) async fn audited(app: &TestApp, bulk: i64) -> (i64, i64) {
    let sql = format!(
        "SELECT count(*), count(DISTINCT (subject, after ->> 'handler')) FROM oncehook.audit WHERE after ->> 'bulk' = '{bulk}'"
    );
    let rows = app.db.rows(&sql, &[]).await;
    (rows[0].get(0), rows[0].get(1))
}

/// No node runs, so the command alone opens the pages; it is killed before each of their statements
/// in turn, and once behind a COMMIT whose answer it did not see.
#[tokio::test]
async fn a_command_that_is_killed_at_any_statement_goes_on_by_number() {
    let mut app = dead_letters(12).await;
    open(&app).await;
    app.stop().await;
    let proxy = PgProxy::start(&app.db.url).await;
    let url = proxy.url(&app.db.name);
    let points = [
        ("", "-- bulk_page"),
        ("", "-- bulk_claim"),
        ("", "-- bulk_lock"),
        ("", "-- replay_open"),
        ("", "-- replay_arm"),
        ("", "-- audit_insert"),
        ("", "-- bulk_advance"),
        ("-- bulk_advance", "commit"),
    ];
    let begin = [&ALL[..], &["--every-handler", "--rate", "9"]].concat();
    let mut before = 0;
    for (number, (after, needle)) in points.into_iter().enumerate() {
        proxy.arm_after(after, needle, Action::FreezeBefore);
        let args: &[&str] = if number == 0 {
            &begin
        } else {
            &["--continue", "1"]
        };
        let mut command = spawn(&app, Some(&url), args);
        proxy.until_fired(number + 1).await;
        command.kill().await.unwrap();
        proxy.cut();
        proxy.thaw();
        until("its sessions are gone", async || {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
            app.db.one::<i64>(sql).await == 0
        })
        .await;
        lease_is_over(&app).await;
        let (state, replayed, refused) = standing(&app, 1).await;
        assert_eq!((state.as_str(), refused), ("running", 0), "{needle}");
        assert_eq!(audited(&app, 1).await, (replayed, replayed), "{needle}");
        assert!(
            replayed >= before && replayed % 9 == 0,
            "{needle}: {replayed}"
        );
        before = replayed;
    }
    // The COMMIT is carried out, its answer lost.
    proxy.arm_after("-- bulk_advance", "commit", Action::CutAfter);
    let mut command = spawn(&app, Some(&url), &["--continue", "1"]);
    proxy.until_fired(points.len() + 1).await;
    assert!(!command.wait().await.unwrap().success());
    until("its page counts", async || {
        standing(&app, 1).await.1 == before + 9
    })
    .await;

    // Begun again, it is refused, and says what can be done.
    let again = replay(&app, &["--every-handler", "--yes"]).await;
    assert_eq!(again.code, Some(1), "{}", again.said());
    assert!(
        again.stderr.contains("is not complete") && again.stderr.contains("--continue 1"),
        "{}",
        again.stderr
    );
    let ran = go_on(&app, "1").await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert!(
        ran.stderr
            .contains("24 runs are ready, 0 refused; bulk 1 is complete"),
        "{}",
        ran.stderr
    );
    assert_eq!(audited(&app, 1).await, (24, 24));
    app.restart().await;
    until_booked(&app, 24).await;
    assert_eq!(runs(&app).await, [(2, 24)]);
    app.db.verify().await;
    let over = go_on(&app, "1").await;
    assert!(
        over.stderr.contains("bulk 1 is complete"),
        "{}",
        over.said()
    );
}

/// What it opens succeeds before the next page is read, so that it would fit again.
#[tokio::test]
async fn a_node_that_is_killed_leaves_its_forced_bulk_to_the_others() {
    let mut app = dead_letters(8).await;
    open(&app).await;
    replay(&app, &["--every-handler", "--yes"]).await;
    until_booked(&app, 16).await;
    let order = json!({
        "dry_run": false, "reason": "booked to the wrong year", "since": "2020-01-01T00:00:00Z", "every_handler": true,
        "results": ["succeeded"], "force": true, "rate": 5, "anew": true,
    });
    let bulk = started(&app, &order).await;
    until("it is at work", async || standing(&app, bulk).await.1 >= 5).await;
    let other = app.another_node().await;
    app.kill9();
    assert!(
        standing(&app, bulk).await.1 < 16,
        "it was too quick to be interrupted"
    );
    until_booked(&app, 32).await;
    until_standing(&app, bulk, "complete").await;
    assert_eq!(standing(&app, bulk).await, ("complete".into(), 16, 0));
    assert_eq!(runs(&app).await, [(3, 16)]);
    assert_eq!(audited(&app, bulk).await, (16, 16));
    app.db.verify().await;
    drop(other);
}

/// Between its start and its page somebody runs one of them by hand: that run is not meant.
#[tokio::test]
async fn what_finishes_after_the_start_is_not_meant() {
    let app = dead_letters(3).await;
    open(&app).await;
    replay(&app, &["--every-handler", "--yes"]).await;
    until_booked(&app, 6).await;
    let order = json!({
        "dry_run": false, "reason": "x", "since": "2020-01-01T00:00:00Z", "handler": "ledger",
        "results": ["succeeded"], "force": true, "rate": 1, "anew": true,
    });
    let bulk = started(&app, &order).await;
    let (status, told) = post(
        &app,
        &format!("/v1/replays/{bulk}/stop"),
        &json!({"reason": "a look first"}),
    )
    .await;
    assert_eq!(status, 200, "{told}");
    let (_, before, _) = standing(&app, bulk).await;
    assert!(before < 3, "it was too quick to be stopped");
    let line = [
        "replay",
        "stripe",
        "evt_2",
        "--handler",
        "ledger",
        "--force",
        "--reason",
        "by hand",
    ];
    let ran = oncehook(&app.config(), &line, &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    until_booked(&app, 6 + before + 1).await;
    let ran = go_on(&app, &bulk.to_string()).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert_eq!(standing(&app, bulk).await, ("complete".into(), 2, 0));
    until_booked(&app, 9).await;
    assert_eq!(runs(&app).await, [(2, 3), (3, 3)]);
    app.db.verify().await;
}

/// Whoever presses Ctrl-C does not want the nodes to go on with it.
#[tokio::test]
async fn ctrl_c_stops_it_everywhere() {
    let app = dead_letters(6).await;
    open(&app).await;
    let args = [&ALL[..], &["--every-handler", "--rate", "1"]].concat();
    let mut command = spawn(&app, None, &args);
    until("it is at work", async || {
        app.db.count("bulk_replay WHERE replayed > 0").await == 1
    })
    .await;
    let pid = i32::try_from(command.id().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
    assert_eq!(command.wait().await.unwrap().code(), Some(1));
    let stopped = standing(&app, 1).await;
    assert_eq!(stopped.0, "stopped");
    assert!(stopped.1 < 12, "{stopped:?}");
    // It is due, and longer than another one that a node does.
    lease_is_over(&app).await;
    let order = json!({
        "dry_run": false, "reason": "x", "since": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00Z", "every_handler": true,
    });
    let other = started(&app, &order).await;
    until_standing(&app, other, "complete").await;
    assert_eq!(standing(&app, 1).await, stopped);
    let actions: Vec<String> = app
        .db
        .all("SELECT action FROM oncehook.audit WHERE subject = '1' ORDER BY id")
        .await;
    assert_eq!(actions, ["replay.bulk", "replay.bulk.stop"]);
    // Stopped by another, a command that waits for its end says that it is not complete.
    let mut command = spawn(&app, None, &["--continue", "1"]);
    until_standing(&app, 1, "running").await;
    let line = ["replay", "--stop", "1", "--reason", "enough"];
    oncehook(&app.config(), &line, &[]).await;
    assert_eq!(command.wait().await.unwrap().code(), Some(1));
}
