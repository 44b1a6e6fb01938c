//! A node's host vanishes in the middle of a settle: its connection stays open and says nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::crash::{Sender, ledger, paid, proxied, put, until_booked_once, verdicts};
use crate::support::{Action, OwnCluster, PgProxy, TestApp, TestDb, until};

const TIMEOUT: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(2);
/// The reaper's pause, and what a busy machine needs for the rest.
const SLACK: Duration = Duration::from_secs(8);

/// Sleeps longer than its time-out allows, at the first try.
const SLEEPS_FIRST: &str = "
CREATE FUNCTION app.sleep_first(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF event.attempt = 1 THEN PERFORM pg_sleep(60); END IF;
  PERFORM app.book(event);
END $$";

async fn node(db: TestDb, proxy: &PgProxy, call: &str) -> (TestApp, String) {
    let url = proxy.url(&db.name);
    let lines = format!("timeout = \"{TIMEOUT:?}\"\nlease = \"{LEASE:?}\"");
    let app = ledger()
        .setup(SLEEPS_FIRST)
        .sql_handler("ledger", call, &lines)
        .on(db)
        .database_url(&url)
        .start()
        .await;
    (app, url)
}

/// The node and its network are gone; another one finishes what it had begun. Returns how long
/// that took.
async fn vanish(app: &mut TestApp, proxy: &PgProxy, url: &str) -> Duration {
    app.sigstop();
    proxy.freeze();
    let start = Instant::now();
    let toml = app.toml().replace(url, &app.db.url);
    let second = app.another_node_with(&toml).await;
    let outcome = until_booked_once(&second, &app.db, "evt_1").await;
    let took = start.elapsed();
    eprintln!("done by another node after {took:.1?}");
    assert_eq!(outcome["attempts"], 2);
    assert_eq!(verdicts(&second, "evt_1").await, ["lost"]);
    took
}

#[tokio::test]
async fn rows_of_a_vanished_node_are_free_when_its_idle_transaction_times_out() {
    let (db, proxy) = proxied().await;
    let (mut app, url) = node(db, &proxy, "app.book").await;
    proxy.arm("-- delivery_run_sql:", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    proxy.until_fired(1).await;
    let free = "SELECT count(*) FROM (SELECT FROM oncehook.delivery FOR UPDATE SKIP LOCKED) free";
    assert_eq!(app.db.one::<i64>(free).await, 0, "its rows are locked");
    let took = vanish(&mut app, &proxy, &url).await;
    assert!(
        took > TIMEOUT + LEASE,
        "the lease alone frees nothing: {took:?}"
    );
    let bound = TIMEOUT + Duration::from_secs(5) + LEASE;
    assert!(took < bound + SLACK, "{took:?}");
    sent.abort();
}

#[tokio::test]
async fn rows_of_a_vanished_node_are_free_when_its_statement_times_out() {
    let (db, proxy) = proxied().await;
    let (mut app, url) = node(db, &proxy, "app.sleep_first").await;
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    let sleeps =
        "pg_catalog.pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    until("the handler runs", async || app.db.count(sleeps).await == 1).await;
    let took = vanish(&mut app, &proxy, &url).await;
    assert!(took < TIMEOUT + LEASE + SLACK, "{took:?}");
    sent.abort();
}

/// Notes what the server was asked to do about a silent client.
const NOTE: &str = "
CREATE TABLE app.asked (idle text, every text, times text, unsent text);
CREATE FUNCTION app.note(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.asked VALUES (current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'),
    current_setting('tcp_keepalives_count'), current_setting('tcp_user_timeout'));
  PERFORM app.book(event);
END $$";

/// What is not inside a transaction holds no rows, but one of the server's connections.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_server_is_asked_to_drop_the_sessions_of_a_vanished_node_within_half_a_minute() {
    // A loopback address of its own, so that port 5432 is free there.
    const ADDRESS: &str = "127.83.76.84";
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let hba = folder.path().join("hba.conf");
    fs::write(
        &hba,
        "local all all trust\nhost all all 127.0.0.0/8 trust\n",
    )
    .unwrap();
    fs::set_permissions(&hba, fs::Permissions::from_mode(0o644)).unwrap();
    let cluster = OwnCluster::with_settings(&[
        ("listen_addresses", ADDRESS),
        ("hba_file", hba.to_str().unwrap()),
    ])
    .await;
    let db = cluster.database().await;
    let name = &db.name;
    let url = format!("postgresql://postgres@{ADDRESS}/{name}?sslmode=disable");
    let app = ledger()
        .setup(NOTE)
        .sql_handler("ledger", "app.note", "")
        .on(db)
        .database_url(url)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    // After 10 s of silence three probes, 5 s apart; what is sent is confirmed within 30 s.
    let asked = "SELECT concat_ws(' ', idle, every, times, unsent) FROM app.asked";
    assert_eq!(app.db.one::<String>(asked).await, "10 5 3 30000");
}
