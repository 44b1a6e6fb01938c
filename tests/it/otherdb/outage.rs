//! The user's database away, or no longer ours to enter: what it costs, and how it ends.

use crate::crash::{POLL, metric, paid, put, until_metric};
use crate::support::{OwnCluster, TestApp, until};

use super::{app, booked, books_on, until_booked_once};

const POLICY: &str = "retry = { for = \"1m\", first = \"10ms\", max = \"20ms\" }\n\
    breaker = { failures = 50, minimum = 5, first = \"200ms\", max = \"400ms\", probes = 2 }";

async fn put_many(app: &TestApp, prefix: &str, count: usize) {
    for n in 0..count {
        put(app, &paid(&format!("{prefix}_{n}"))).await;
    }
}

#[tokio::test]
async fn a_database_that_is_away_stops_no_webhook_and_costs_few_tries() {
    let cluster = OwnCluster::start().await;
    let other = books_on(cluster.url()).await;
    cluster.kill().await;
    // Nor does it stop a start.
    let app = app("app.book", &other.url, POLICY).start().await;
    app.until_logged("a handler's database is not reached, its deliveries wait")
        .await;
    put_many(&app, "evt", 100).await;
    until_metric(&app, "oncehook_breaker_opened_total", |n| n >= 4.0).await;
    let opened = metric(&app, "oncehook_breaker_opened_total").await.unwrap();
    let tries = app.db.count("attempt").await;
    // 16 slots before it opened, and what was claimed with them; then two per opening.
    #[expect(clippy::cast_possible_truncation, reason = "a small count")]
    let most = 2 * 16 + 2 * (opened as i64 + 1);
    assert!(tries <= most, "{tries} tries, {opened} openings");
    assert_eq!(app.db.count("outcome").await, 0);

    cluster.restart().await;
    until("all are done", async || {
        app.db.count("outcome").await == 100
    })
    .await;
    assert_eq!(
        app.db.count("outcome WHERE result = 'succeeded'").await,
        100
    );
    for n in 0..100 {
        assert_eq!(booked(&other, &format!("evt_{n}")).await, 1);
    }
    until_metric(&app, "oncehook_breaker_state", |state| state == 0.0).await;
    app.db.verify().await;
}

#[tokio::test]
async fn a_password_that_is_wrong_stops_no_webhook_and_stands_in_no_log() {
    const PASSWORD: &str = "hunter2-hunter2-hunter2";
    let cluster = OwnCluster::start().await;
    let other = books_on(cluster.url()).await;
    let hba = cluster.socket_dir().await.join("asks.conf");
    let hba = hba.display();
    other
        .execute(&format!(
            "CREATE ROLE books LOGIN PASSWORD 'the former one';
             GRANT USAGE ON SCHEMA app, oncehook TO books; GRANT SELECT, INSERT ON app.ledger TO books;
             GRANT SELECT, INSERT, UPDATE ON oncehook.applied TO books;
             COPY (VALUES ('local all postgres trust'), ('local all all scram-sha-256')) TO '{hba}'"
        ))
        .await;
    other
        .execute(&format!("ALTER SYSTEM SET hba_file = '{hba}'"))
        .await;
    cluster.restart().await;
    let url = other
        .url
        .replace("postgres@", &format!("books:{PASSWORD}@"));
    let mut app = TestApp::builder()
        .stripe("stripe")
        .toml(POLL)
        .env("BOOKS_URL", &url)
        .sql_handler(
            "ledger",
            "app.book",
            &format!("database = \"env:BOOKS_URL\"\n{POLICY}"),
        )
        .start()
        .await;
    put_many(&app, "evt", 20).await;
    until_metric(&app, "oncehook_breaker_opened_total", |n| n >= 2.0).await;
    let tries: Vec<String> = app.db.all("SELECT error FROM oncehook.attempt").await;
    assert!(
        tries.iter().all(|error| !error.contains(PASSWORD)),
        "{tries:?}"
    );
    assert!(
        tries.iter().all(|error| error.contains("handler.database")),
        "{tries:?}"
    );
    assert_eq!(app.db.count("outcome").await, 0);
    // As it was meant to be; then it expires behind the node's back.
    other
        .execute(&format!("ALTER ROLE books PASSWORD '{PASSWORD}'"))
        .await;
    for n in 0..20 {
        until_booked_once(&app, &other, &format!("evt_{n}")).await;
    }
    other
        .execute("ALTER ROLE books VALID UNTIL '2001-01-01'")
        .await;
    other
        .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'books'")
        .await;
    put_many(&app, "late", 20).await;
    until("the tries fail", async || {
        app.db.count("delivery WHERE failures > 0").await > 0
    })
    .await;
    other
        .execute("ALTER ROLE books VALID UNTIL 'infinity'")
        .await;
    for n in 0..20 {
        until_booked_once(&app, &other, &format!("late_{n}")).await;
    }
    assert!(app.is_alive());
    assert!(!app.output().contains(PASSWORD));
    app.db.verify().await;
}
