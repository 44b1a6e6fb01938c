//! The tools of the tests do what the tests rely on.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::leash::Leashed;
use crate::support::node::client;
use crate::support::shared::Shared;
use crate::support::{
    Action, Gate, PgProxy, RawHttp, Receiver, Reply, TestDb, connect, tool, until,
};

async fn proxied() -> (TestDb, PgProxy) {
    let db = TestDb::blank().await;
    db.execute("CREATE TABLE t (v int)").await;
    let proxy = PgProxy::start(&db.url).await;
    (db, proxy)
}

#[tokio::test]
async fn the_proxy_cuts_before_and_after_a_commit() {
    let (db, proxy) = proxied().await;
    for (action, rows) in [(Action::CutBefore, 0), (Action::CutAfter, 1)] {
        proxy.arm("COMMIT", action);
        let mut client = connect(&proxy.url(&db.name)).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        transaction
            .execute("INSERT INTO t VALUES ($1)", &[&1])
            .await
            .unwrap();
        assert!(transaction.commit().await.is_err(), "{action:?}");
        until("the outcome shows", async || {
            db.count("public.t").await == rows
        })
        .await;
    }
    proxy.until_fired(2).await;
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn the_proxy_knows_a_prepared_statement_when_it_runs() {
    let (db, proxy) = proxied().await;
    let client = connect(&proxy.url(&db.name)).await.unwrap();
    proxy.arm("into T values", Action::FreezeBefore);
    let statement = client.prepare("INSERT INTO t VALUES ($1)").await.unwrap();
    let running = tokio::spawn(async move { client.execute(&statement, &[&1]).await });
    proxy.until_fired(1).await;
    assert_eq!(db.count("public.t").await, 0);
    assert!(!running.is_finished());
    proxy.thaw();
    assert_eq!(running.await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn the_proxy_refuses_cuts_and_delays() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let client = connect(&url).await.unwrap();
    proxy.cut();
    until("the cut is noticed", async || client.is_closed()).await;
    proxy.refuse();
    assert!(connect(&url).await.is_err());
    proxy.admit();
    let client = connect(&url).await.unwrap();
    proxy.delay(Duration::from_millis(50));
    let start = Instant::now();
    client.simple_query("SELECT 1").await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(100));
}

#[tokio::test]
async fn the_receiver_records_and_answers_as_told() {
    let receiver = Receiver::start().await;
    let http = client();
    let post = || http.post(receiver.url("/hooks?a=1")).body("hello").send();
    let gate = Gate::closed();
    receiver.reply(Reply::status(503).header("Retry-After", "7").body("later"));
    receiver.reply(Reply::cut());
    receiver.reply(Reply::cut_within());
    receiver.reply(Reply::status(204).behind(&gate));

    let answer = post().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "7");
    assert_eq!(answer.text().await.unwrap(), "later");
    assert!(post().await.is_err());
    assert!(post().await.is_err());
    let held = tokio::spawn(post());
    let received = receiver.until_requests(4).await;
    assert!(!held.is_finished());
    gate.open();
    assert_eq!(held.await.unwrap().unwrap().status(), 204);
    assert_eq!(post().await.unwrap().status(), 200);

    assert_eq!(
        (received[0].method.as_str(), received[0].path.as_str()),
        ("POST", "/hooks?a=1")
    );
    assert_eq!(received[0].body, b"hello");
    assert_eq!(received[0].header("Content-length"), Some("5"));
}

#[tokio::test]
async fn raw_requests_are_sent_as_they_are() {
    let receiver = Receiver::start().await;
    receiver.always(Reply::status(202).body("ok"));
    let address = receiver
        .url("")
        .trim_start_matches("http://")
        .parse()
        .unwrap();
    let mut raw = RawHttp::connect(address).await;
    assert!(
        raw.send("PUT /odd HTTP/1.1\r\ncOnTent-LENGTH: 2\r\n\r\nx")
            .await
    );
    assert!(raw.send("y").await);
    let answer = raw.read_response().await.unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (202, "ok"));
    raw.half_close().await;
    assert_eq!(raw.read_all().await, "");
    assert_eq!(receiver.requests()[0].body, b"xy");
}

#[tokio::test]
async fn a_role_ends_with_the_database_of_its_test() {
    let (db, other) = (TestDb::blank().await, TestDb::blank().await);
    let (role, of_other) = (db.role("lowly", "").await, other.role("lowly", "").await);
    db.execute(&format!(
        "CREATE TABLE t (v int); GRANT SELECT ON t TO {role}"
    ))
    .await;
    drop(db);
    let left = "SELECT rolname::text FROM pg_roles WHERE rolname = ANY ($1)";
    let left = other.rows(left, &[&vec![role, of_other.clone()]]).await;
    let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, [of_other]);
}

#[test]
fn a_tool_that_must_be_there_is_named_in_a_list() {
    for (must, named) in [
        ("", false),
        ("faketime", false),
        ("pgbouncer", true),
        ("faketime, pgbouncer", true),
        ("all", true),
    ] {
        assert_eq!(tool::is_named(must, "pgbouncer"), named, "{must}");
    }
}

/// Where the owner below writes the process id of its program.
const LEASH_FILE: &str = "ONCEHOOK_TEST_LEASH_FILE";

/// Starts this very program as the owner of another one, and has it die without any last word.
#[tokio::test]
async fn a_leashed_program_ends_when_its_owner_dies() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    if let Some(file) = std::env::var_os(LEASH_FILE) {
        let script = "echo $$ > \"$0.new\" && mv \"$0.new\" \"$0\"; exec sleep 120";
        let args = [OsStr::new("-c"), OsStr::new(script), &file];
        let log = File::create(folder.path().join("log")).unwrap();
        let _program = Leashed::start(OsStr::new("/bin/sh"), args, log).unwrap();
        until("it runs", async || Path::new(&file).exists()).await;
        std::process::abort();
    }
    let test = "harness::a_leashed_program_ends_when_its_owner_dies";
    let owner = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(LEASH_FILE, &file)
        .output();
    assert!(!owner.unwrap().status.success());
    let pid: i32 = std::fs::read_to_string(&file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    until("it has ended", async || {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_err()
    })
    .await;
}

/// Two processes share a cluster; it outlives each alone and ends after both, whoever dies how.
#[tokio::test]
async fn the_shared_cluster_ends_after_its_last_client() {
    let sleeper = || {
        std::process::Command::new("sleep")
            .arg("120")
            .spawn()
            .unwrap()
    };
    // Stand-ins for two test processes.
    let (mut one, mut two) = (sleeper(), sleeper());
    let base = tempfile::tempdir().unwrap();
    let area = base.path().join("area");
    let status = std::process::Command::new("chmod")
        .arg("755")
        .arg(base.path())
        .status();
    assert!(status.unwrap().success());

    let first = Shared::join(area.clone(), one.id(), 2).await;
    let second = Shared::join(area.clone(), two.id(), 2).await;
    assert_eq!(first.url(), second.url());
    one.kill().unwrap();
    one.wait().unwrap();
    two.kill().unwrap();
    let start = Instant::now();
    two.wait().unwrap();
    assert!(connect(second.url()).await.is_ok(), "a grace is left");
    until("the run is removed", async || !first.run().exists()).await;
    assert!(start.elapsed() > Duration::from_secs(1));

    // A third client finds nothing to join and starts anew.
    let mut three = sleeper();
    let third = Shared::join(area.clone(), three.id(), 2).await;
    assert_ne!(third.run(), first.run());
    three.kill().unwrap();
    three.wait().unwrap();
    until("that run is removed too", async || !third.run().exists()).await;
}
