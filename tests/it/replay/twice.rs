//! Two at the same bulk replay, and two bulk replays of the same runs.

use crate::support::{Action, PgProxy, oncehook, until};

use super::interrupted::{ALL, audited, go_on, lease_is_over, spawn};
use super::{dead_letters, open, replay, runs, standing, until_booked};

/// One reads a page and is held up; when its lease is over the other opens that page and the rest.
#[tokio::test]
async fn a_page_is_opened_by_one_of_two() {
    let mut app = dead_letters(10).await;
    open(&app).await;
    app.stop().await;
    let proxy = PgProxy::start(&app.db.url).await;
    proxy.arm("-- bulk_lock", Action::FreezeBefore);
    let args = [&ALL[..], &["--every-handler", "--rate", "10"]].concat();
    let mut slow = spawn(&app, Some(&proxy.url(&app.db.name)), &args);
    proxy.until_fired(1).await;
    lease_is_over(&app).await;
    let first = tokio::spawn({
        let (config, line) = (app.config(), ["replay", "--continue", "1", "--reason", "x"]);
        async move { oncehook(&config, &line, &[]).await }
    });
    until("a page is opened", async || standing(&app, 1).await.1 > 0).await;
    proxy.thaw();
    let ran = first.await.unwrap();
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert!(slow.wait().await.unwrap().success());
    assert_eq!(standing(&app, 1).await, ("complete".into(), 20, 0));
    assert_eq!(audited(&app, 1).await, (20, 20));
    app.restart().await;
    until_booked(&app, 20).await;
    assert_eq!(runs(&app).await, [(2, 20)]);
    app.db.verify().await;
}

/// Two commands, a node and another one at one bulk.
#[tokio::test]
async fn many_at_one_bulk_share_its_pages() {
    let mut app = dead_letters(12).await;
    open(&app).await;
    let _other = app.another_node().await;
    let args = [&ALL[..], &["--every-handler", "--rate", "10"]].concat();
    let mut command = spawn(&app, None, &args);
    until("it has begun", async || {
        app.db.count("bulk_replay").await == 1
    })
    .await;
    let (one, two) = tokio::join!(go_on(&app, "1"), go_on(&app, "1"));
    for ran in [one, two] {
        assert_eq!(ran.code, Some(0), "{}", ran.said());
        assert!(
            ran.stderr.contains("24 runs are ready, 0 refused"),
            "{}",
            ran.stderr
        );
    }
    assert!(command.wait().await.unwrap().success());
    assert_eq!(audited(&app, 1).await, (24, 24));
    until_booked(&app, 24).await;
    assert_eq!(runs(&app).await, [(2, 24)]);
    app.db.verify().await;
}

/// Both look for others before either is there to be seen.
#[tokio::test]
async fn of_two_that_begin_at_once_one_is_refused() {
    let mut app = dead_letters(2).await;
    open(&app).await;
    app.stop().await;
    let proxy = PgProxy::start(&app.db.url).await;
    proxy.arm("-- bulk_insert", Action::FreezeBefore);
    let args = [&ALL[..], &["--every-handler", "--rate", "1"]].concat();
    let mut first = spawn(&app, Some(&proxy.url(&app.db.name)), &args);
    proxy.until_fired(1).await;
    let mut second = spawn(&app, None, &args);
    until("the second waits for its turn", async || {
        let sql = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                    WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()";
        app.db.one::<i64>(sql).await == 1
    })
    .await;
    proxy.thaw();
    let second = second.wait().await.unwrap();
    assert_eq!(second.code(), Some(1));
    first.kill().await.unwrap();
    assert_eq!(app.db.count("bulk_replay").await, 1);
}

#[tokio::test]
async fn what_was_forced_a_moment_ago_is_not_forced_again_unasked() {
    let app = dead_letters(2).await;
    open(&app).await;
    let forced = [
        "--every-handler",
        "--result",
        "dead,succeeded",
        "--force",
        "--yes",
    ];
    let ran = replay(&app, &forced).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    until_booked(&app, 4).await;
    // The answer was lost, and the command is repeated.
    let again = replay(&app, &forced).await;
    assert_eq!(again.code, Some(1), "{}", again.said());
    assert!(again.stderr.contains("--anew"), "{}", again.stderr);
    assert_eq!(
        (runs(&app).await, app.db.count("delivery").await),
        (vec![(2, 4)], 0)
    );
    let meant = replay(&app, &[&forced[..], &["--anew"]].concat()).await;
    assert_eq!(meant.code, Some(0), "{}", meant.said());
    until_booked(&app, 8).await;
    assert_eq!(runs(&app).await, [(3, 4)]);
    app.db.verify().await;
}

#[tokio::test]
async fn one_that_is_begun_anew_gives_up_what_is_in_its_way_and_nothing_else() {
    let mut app = dead_letters(4).await;
    open(&app).await;
    app.stop().await;
    // Two that were stopped, of different handlers.
    for (bulk, handler) in [("1", "ledger"), ("2", "report")] {
        let args = [&ALL[..], &["--handler", handler, "--rate", "1"]].concat();
        let mut command = spawn(&app, None, &args);
        until("it has begun", async || {
            app.db
                .count(&format!("bulk_replay WHERE id = {bulk} AND replayed > 0"))
                .await
                == 1
        })
        .await;
        command.kill().await.unwrap();
        let line = ["replay", "--stop", bulk, "--reason", "enough"];
        let ran = oncehook(&app.config(), &line, &[]).await;
        assert_eq!(ran.code, Some(0), "{}", ran.said());
    }
    for narrower in [
        &["stripe", "--handler", "ledger"][..],
        &["--handler", "ledger", "--type", "charge.*"],
    ] {
        let refused = replay(&app, &[narrower, &["--yes"]].concat()).await;
        assert_eq!(refused.code, Some(1), "{}", refused.said());
        assert!(
            refused.stderr.contains("bulk 1 by cli:"),
            "{}",
            refused.stderr
        );
    }
    let ran = replay(&app, &["--handler", "ledger", "--anew", "--yes"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert_eq!(standing(&app, 1).await.0, "given_up");
    assert_eq!(standing(&app, 2).await.0, "stopped");
    let again = go_on(&app, "1").await;
    assert_eq!(again.code, Some(1), "{}", again.said());
    assert!(
        again.stderr.contains("bulk 1 is given_up"),
        "{}",
        again.stderr
    );
    let line = ["replay", "--give-up", "2", "--reason", "not needed"];
    let ran = oncehook(&app.config(), &line, &[]).await;
    assert!(ran.stderr.contains("bulk 2 is given up"), "{}", ran.said());
    app.restart().await;
    until_booked(&app, 4 + standing(&app, 2).await.1).await;
    app.db.verify().await;
}
