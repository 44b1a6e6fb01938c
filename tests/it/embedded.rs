//! The private PostgreSQL of `dev` and of these tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oncehook::embedded::{Cluster, EmbeddedError, MovedReason, Options, wipe};

use crate::support::database::connect;
use crate::support::{OwnCluster, TestDb, until};

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // The unprivileged user must be able to pass.
    let status = Command::new("chmod").arg("755").arg(dir.path()).status();
    assert!(status.unwrap().success());
    dir
}

fn options(dir: &Path) -> Options {
    Options {
        durable: false,
        ..Options::new(dir)
    }
}

async fn start(options: Options) -> Cluster {
    tokio::task::spawn_blocking(|| Cluster::start(options))
        .await
        .unwrap()
        .unwrap()
}

async fn query(url: &str, sql: &str) -> Result<String, tokio_postgres::Error> {
    let client = connect(url).await?;
    client.query_one(sql, &[]).await.map(|row| row.get(0))
}

async fn execute(url: &str, sql: &str) {
    let client = connect(url).await.unwrap();
    client.batch_execute(sql).await.unwrap();
}

fn is_alive(pid: u32) -> bool {
    use nix::sys::signal::kill;
    use nix::unistd::Pid;
    kill(Pid::from_raw(pid.try_into().unwrap()), None).is_ok()
}

fn sigkill(pid: u32) {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn data_survives_stop_kill_and_a_killed_postmaster() {
    let dir = folder();
    let mut cluster = start(options(&dir.path().join("pg"))).await;
    assert!(cluster.moved().is_none());
    assert!(cluster.create_database("books").await.unwrap());
    assert!(!cluster.create_database("books").await.unwrap());
    let url = cluster.url("books");
    execute(
        &url,
        "CREATE TABLE t (v text); INSERT INTO t VALUES ('kept')",
    )
    .await;

    cluster.restart().unwrap();
    assert_eq!(query(&url, "SELECT v FROM t").await.unwrap(), "kept");

    cluster.kill();
    assert!(query(&url, "SELECT v FROM t").await.is_err());
    assert_eq!(cluster.pid(), None);
    cluster.restart().unwrap();
    assert_eq!(query(&url, "SELECT v FROM t").await.unwrap(), "kept");

    // Killed from outside, with a busy backend that outlives its postmaster for a while.
    let client = connect(&url).await.unwrap();
    let busy = tokio::spawn(async move {
        client
            .query("SELECT count(*) FROM generate_series(1, 20000000) a", &[])
            .await
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    sigkill(cluster.pid().unwrap());
    until("the postmaster dies", async || cluster.pid().is_none()).await;
    cluster.restart().unwrap();
    assert_eq!(query(&url, "SELECT v FROM t").await.unwrap(), "kept");
    drop(busy);
}

#[tokio::test]
async fn two_clusters_run_side_by_side_and_each_owns_its_folder() {
    let dir = folder();
    let one = start(options(&dir.path().join("one"))).await;
    let two = start(options(&dir.path().join("two"))).await;
    let sql = "SELECT current_setting('data_directory')";
    let first = query(&one.url("postgres"), sql).await.unwrap();
    let second = query(&two.url("postgres"), sql).await.unwrap();
    assert_ne!(first, second);
    for (setting, value) in [("listen_addresses", ""), ("fsync", "off")] {
        let sql = format!("SELECT current_setting('{setting}')");
        assert_eq!(query(&one.url("postgres"), &sql).await.unwrap(), value);
    }

    let error = Cluster::start(options(&dir.path().join("one"))).unwrap_err();
    assert!(matches!(error, EmbeddedError::InUse { .. }), "{error}");
    let me = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&me), "{error}");
    assert!(matches!(
        wipe(dir.path().join("one")),
        Err(EmbeddedError::InUse { .. })
    ));
}

#[tokio::test]
async fn an_unreachable_folder_moves_to_a_temporary_one_and_is_said() {
    let dir = folder();
    let mut wanted = dir.path().join("closed");
    let reason = if nix::unistd::Uid::effective().is_root() {
        // Closed to everybody but root, so PostgreSQL's user cannot pass.
        std::fs::create_dir(&wanted).unwrap();
        let status = Command::new("chmod").arg("700").arg(&wanted).status();
        assert!(status.unwrap().success());
        MovedReason::Unreachable
    } else {
        wanted = dir.path().join("x".repeat(90));
        MovedReason::PathTooLong
    };
    let wanted = wanted.join("pg");
    let first = start(options(&wanted)).await;
    let moved = first.moved().unwrap().clone();
    assert_eq!((&moved.wanted, moved.reason), (&wanted, reason));
    assert_eq!(moved.used, first.dir());
    assert!(moved.to_string().contains(wanted.to_str().unwrap()));
    execute(&first.url("postgres"), "CREATE TABLE kept ()").await;
    drop(first);

    let again = start(options(&wanted)).await;
    assert_eq!(again.dir(), moved.used, "the place stays the same");
    execute(&again.url("postgres"), "SELECT FROM kept").await;
    drop(again);

    wipe(&wanted).unwrap();
    assert!(!moved.used.join("data").exists());
    std::fs::remove_dir_all(&moved.used).unwrap();
}

#[tokio::test]
async fn a_server_left_over_from_a_killed_owner_is_replaced() {
    let dir = folder();
    let wanted = dir.path().join("pg");
    let first = start(options(&wanted)).await;
    let url = first.url("postgres");
    execute(&url, "CREATE TABLE kept ()").await;
    let old = first.release().unwrap();
    assert!(is_alive(old));
    // This process is its parent, who must collect it.
    let collector = std::thread::spawn(move || {
        let old = nix::unistd::Pid::from_raw(old.try_into().unwrap());
        nix::sys::wait::waitpid(old, None)
    });
    let mut second = start(options(&wanted)).await;
    assert_ne!(second.pid().unwrap(), old);
    execute(&url, "SELECT FROM kept").await;
    assert!(collector.join().unwrap().is_ok());
}

const OWNER_DIR: &str = "ONCEHOOK_TEST_OWNER_DIR";

/// Not a test: run by the next one as a process that can be killed.
#[test]
fn owner_process() {
    let Some(dir) = std::env::var_os(OWNER_DIR) else {
        return;
    };
    let mut cluster = Cluster::start(Options {
        ephemeral: true,
        ..options(&PathBuf::from(dir))
    })
    .unwrap();
    eprintln!("server {}", cluster.pid().unwrap());
    std::thread::sleep(Duration::from_mins(1));
}

#[tokio::test]
async fn an_ephemeral_cluster_ends_with_its_killed_owner() {
    let dir = folder();
    let pg = dir.path().join("pg");
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::owner_process", "--nocapture"])
        .env(OWNER_DIR, &pg)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let server: u32 = BufReader::new(owner.stderr.take().unwrap())
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("server ")?.parse().ok())
        .unwrap();
    assert!(is_alive(server));
    owner.kill().unwrap();
    owner.wait().unwrap();
    until("the server has ended and its folder is gone", async || {
        !is_alive(server) && !pg.exists()
    })
    .await;
}

#[tokio::test]
async fn clones_are_quick_and_independent() {
    let maintenance = crate::support::shared::shared().await.url();
    let build = async |url: String| {
        execute(
            &url,
            "CREATE TABLE public.t (v text); INSERT INTO t VALUES ('x')",
        )
        .await;
    };
    let first = TestDb::from_template(maintenance, "embedded_clones", build).await;
    let start = Instant::now();
    let clones = 5;
    for _ in 0..clones {
        let db = TestDb::from_template(maintenance, "embedded_clones", async |_| {
            panic!("the template is made once")
        })
        .await;
        assert_eq!(db.count("public.t").await, 1);
        db.execute("INSERT INTO t VALUES ('y')").await;
        assert_eq!(db.count("public.t WHERE v = 'y'").await, 1);
    }
    let each = start.elapsed() / clones;
    eprintln!("clone, use and drop: {each:?}");
    assert!(each < Duration::from_secs(1), "{each:?}");
    assert_eq!(first.count("public.t").await, 1);
}

#[tokio::test]
async fn who_waits_for_a_lock_is_seen() {
    let db = TestDb::blank().await;
    db.execute("CREATE TABLE t (v int); INSERT INTO t VALUES (1)")
        .await;
    let holder = db.client().await;
    holder
        .batch_execute("BEGIN; UPDATE t SET v = 2")
        .await
        .unwrap();
    let waiter = db.client().await;
    let expected = crate::support::database::backend_pid(&waiter).await;
    let waiting = tokio::spawn(async move { waiter.execute("UPDATE t SET v = 3", &[]).await });
    let holder_pid = crate::support::database::backend_pid(&holder).await;
    assert_eq!(db.until_blocked_by(holder_pid).await, expected);
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn an_own_cluster_is_up_in_no_time_and_survives_its_death() {
    let own = OwnCluster::with_settings(&[("max_connections", "7")]).await;
    let setting = query(own.url(), "SELECT current_setting('max_connections')").await;
    assert_eq!(setting.unwrap(), "7");
    own.kill().await;
    assert!(connect(own.url()).await.is_err());
    own.restart().await;
    assert!(connect(own.url()).await.is_ok());
}
