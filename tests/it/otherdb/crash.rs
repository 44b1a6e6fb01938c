//! Crashes between and at the two commits: that in the user's database, and that of the outcome in ours.

use std::time::Duration;

use serde_json::json;

use crate::crash::{
    Barrier, QUICK, end_leases, kill_before, paid, put, restart_after_leases, timeline,
    until_disconnected, verdicts,
};
use crate::support::{Action, OwnCluster, PgProxy, TestDb, until};

use super::{app, booked, booking, books, books_on, proxied_books, repeats, until_booked_once};

#[tokio::test]
async fn killed_between_the_two_commits_it_is_answered_from_the_ledger() {
    let other = books().await;
    let (db, proxy) = crate::crash::proxied().await;
    let url = proxy.url(&db.name);
    let mut app = booking(&other.url).on(db).database_url(url).start().await;
    proxy.arm("-- delivery_finish:", Action::FreezeBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    assert_eq!(booked(&other, "evt_1").await, 1, "it is committed there");
    kill_before(&mut app, &proxy).await;
    assert_eq!(app.db.count("outcome").await, 0, "and not here");
    restart_after_leases(&mut app).await;
    let outcome = until_booked_once(&app, &other, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&app, "evt_1").await, ["lost"]);
    assert_eq!(repeats(&other).await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn killed_inside_the_function_its_effect_is_rolled_back_and_made_once() {
    let other = books().await;
    let mut app = app("app.book_behind_barrier", &other.url, QUICK)
        .start()
        .await;
    let barrier = Barrier::closed(&other).await;
    put(&app, &paid("evt_1")).await;
    barrier.until_waited(&other).await;
    app.kill9();
    barrier.open().await;
    until_disconnected(&other).await;
    assert_eq!(booked(&other, "evt_1").await, 0);
    assert_eq!(other.count("applied").await, 0);
    restart_after_leases(&mut app).await;
    let outcome = until_booked_once(&app, &other, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(repeats(&other).await, 0);
    app.db.verify().await;
}

#[tokio::test]
async fn a_commit_there_whose_reply_is_lost_is_answered_from_the_ledger() {
    let (other, proxy) = proxied_books().await;
    let app = booking(&proxy.url(&other.name)).start().await;
    proxy.arm_after("-- ledger_answer:", "COMMIT", Action::CutAfter);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    let outcome = until_booked_once(&app, &other, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&app, "evt_1").await, ["retry"]);
    assert_eq!(repeats(&other).await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn a_commit_there_that_never_arrives_runs_again() {
    let (other, proxy) = proxied_books().await;
    let app = booking(&proxy.url(&other.name)).start().await;
    proxy.arm_after("-- ledger_answer:", "COMMIT", Action::CutBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    until_booked_once(&app, &other, "evt_1").await;
    assert_eq!(other.one::<i32>("SELECT attempt FROM app.ledger").await, 2);
    assert_eq!(repeats(&other).await, 0);
    app.db.verify().await;
}

#[tokio::test]
async fn killed_before_its_commit_the_users_database_has_nothing_and_it_runs_again() {
    let cluster = OwnCluster::start().await;
    let other = books_on(cluster.url()).await;
    let proxy = PgProxy::start(cluster.url()).await;
    let app = booking(&proxy.url(&other.name)).start().await;
    proxy.arm_after("-- ledger_answer:", "COMMIT", Action::FreezeBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    cluster.kill().await;
    proxy.cut();
    proxy.thaw();
    cluster.restart().await;
    until_booked_once(&app, &other, "evt_1").await;
    assert!(other.one::<i32>("SELECT attempt FROM app.ledger").await > 1);
    assert_eq!(repeats(&other).await, 0);
    app.db.verify().await;
}

#[tokio::test]
async fn killed_behind_its_commit_the_users_database_answers_from_the_ledger() {
    let cluster = OwnCluster::start().await;
    let other = books_on(cluster.url()).await;
    let proxy = PgProxy::start(cluster.url()).await;
    let app = booking(&proxy.url(&other.name)).start().await;
    proxy.arm_after("-- ledger_answer:", "COMMIT", Action::CutAfter);
    // The second try is held, so that the database is down before that.
    let claim = |action| proxy.arm_after("statement_timeout", "-- ledger_claim:", action);
    claim(Action::Delay(Duration::ZERO));
    claim(Action::FreezeBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(3).await;
    cluster.kill().await;
    proxy.cut();
    proxy.thaw();
    cluster.restart().await;
    until_booked_once(&app, &other, "evt_1").await;
    assert_eq!(other.one::<i32>("SELECT attempt FROM app.ledger").await, 1);
    assert!(repeats(&other).await >= 1);
    app.db.verify().await;
}

/// Written and flushed, and waiting for a standby that never comes: whoever is killed there cannot know. Nor does a
/// function make the COMMIT one that waits for nothing.
#[tokio::test]
async fn killed_in_the_middle_of_its_commit_the_users_database_has_the_effect_once() {
    let cluster = OwnCluster::start().await;
    let other = books_on(cluster.url()).await;
    other
        .execute(
            "CREATE FUNCTION app.book_carelessly(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
             BEGIN
               SET LOCAL synchronous_commit = off;
               RETURN app.book(event);
             END $$",
        )
        .await;
    let app = app("app.book_carelessly", &other.url, QUICK).start().await;
    let admin = TestDb::blank_on(cluster.url()).await;
    admin
        .execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        .await;
    admin.execute("SELECT pg_reload_conf()").await;
    until("COMMITs wait for a standby", async || {
        admin.one::<String>("SHOW synchronous_standby_names").await == "nobody"
    })
    .await;
    put(&app, &paid("evt_1")).await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'COMMIT%'";
    until("the COMMIT waits", async || {
        admin.one::<i64>(waits).await == 1
    })
    .await;
    assert_eq!(booked(&other, "evt_1").await, 0, "seen by nobody yet");
    cluster.kill().await;
    cluster.restart().await;
    admin
        .execute("ALTER SYSTEM RESET synchronous_standby_names")
        .await;
    admin.execute("SELECT pg_reload_conf()").await;
    until_booked_once(&app, &other, "evt_1").await;
    assert_eq!(other.one::<i32>("SELECT attempt FROM app.ledger").await, 1);
    app.db.verify().await;
}

#[tokio::test]
async fn our_own_database_killed_between_the_two_commits_has_the_outcome_once() {
    let other = books().await;
    let cluster = OwnCluster::start().await;
    let db = cluster.database().await;
    let proxy = PgProxy::start(cluster.url()).await;
    let url = proxy.url(&db.name);
    let app = booking(&other.url).on(db).database_url(url).start().await;
    proxy.arm("-- delivery_finish:", Action::FreezeBefore);
    put(&app, &paid("evt_1")).await;
    proxy.until_fired(1).await;
    assert_eq!(booked(&other, "evt_1").await, 1);
    cluster.kill().await;
    proxy.cut();
    proxy.thaw();
    cluster.restart().await;
    // The node lives and has the answer still.
    let outcome = until_booked_once(&app, &other, "evt_1").await;
    assert_eq!(outcome["attempts"], 1);
    app.db.verify().await;
}

#[tokio::test]
async fn two_nodes_at_one_event_have_its_effect_once_and_one_answer() {
    let other = books().await;
    let lines = format!("{QUICK}\ntimeout = \"20s\"");
    let mut app = app("app.book_behind_barrier", &other.url, &lines)
        .start()
        .await;
    let barrier = Barrier::closed(&other).await;
    put(&app, &paid("evt_1")).await;
    let first = barrier.until_waited(&other).await;
    // Its lease ends while it is at work: another node has it too.
    let second = app.another_node().await;
    app.sigstop();
    end_leases(&app.db).await;
    other.until_blocked_by(first).await;
    assert_eq!(booked(&other, "evt_1").await, 0);
    barrier.open().await;
    app.sigcont();
    let outcome = until_booked_once(&second, &other, "evt_1").await;
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(repeats(&other).await, 1);
    // The first one's answer came to nothing, or is kept beside it.
    assert_eq!(app.db.count("outcome").await, 1);
    app.db.verify().await;
}

/// Twelve tries whose COMMIT was answered to nobody: dead here, done there.
#[tokio::test]
async fn a_dead_letter_whose_effect_is_there_has_its_answer_at_the_replay() {
    let (other, proxy) = proxied_books().await;
    let lines =
        "retry = { for = \"1ms\", first = \"1ms\", max = \"2ms\", share = 10000 }\nbreaker = false";
    let app = app("app.book", &proxy.url(&other.name), lines)
        .start()
        .await;
    proxy.arm_after("-- ledger_answer:", "COMMIT", Action::CutAfter);
    for _ in 1..12 {
        proxy.arm_after("-- ledger_claim:", "COMMIT", Action::CutAfter);
    }
    put(&app, &paid("evt_1")).await;
    let outcome = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("dead"), &json!(12)),
        "{:?}",
        timeline(&app, "evt_1").await
    );
    assert_eq!(booked(&other, "evt_1").await, 1);
    let ran = super::answers::replay(&app, "evt_1", &[]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    until("the replay ends", async || {
        app.db.count("outcome").await == 2
    })
    .await;
    let again = app.until_outcome("stripe", "evt_1", "ledger").await;
    assert_eq!(
        (&again["result"], &again["effect_key"]),
        (&json!("succeeded"), &outcome["effect_key"])
    );
    assert_eq!(booked(&other, "evt_1").await, 1, "not once more");
    assert_eq!(repeats(&other).await, 12);
    app.db.verify().await;
}
