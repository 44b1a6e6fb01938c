//! Behind a pooler that lends a session for one transaction: PgBouncer, with fewer sessions than
//! clients, so that sessions really go from hand to hand.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncehook::dispatch::{
    Answer, Delivered, Function, HandlerError, HandlerKind, HandlerSpec, Work,
};
use oncehook::store::Settings;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_postgres::types::Type;

use crate::crash::{QUICK, booking, paid, put, storing_ledger, until_booked_once};
use crate::dispatch::LEDGER;
use crate::support::bouncer::PgBouncer;
use crate::support::inbox::{Inbox, dispatch, event, every, quick, stripe_source};
use crate::support::judge::trial::{CALL_LINES, PAID, REFUNDED, SHIPPED, SQL_LINES};
use crate::support::judge::{Behaviour, Message, Trial};
use crate::support::{AppBuilder, Node, TestDb, connect, oncehook, until};

use super::durable::WARN_AT_COMMIT;
use super::{expect_unavailable, readiness, until_acknowledged};

/// Before a sender comes again.
const BACK_OFF: Duration = Duration::from_millis(20);

const BY_TRANSACTION: &str = "pooling = \"transaction\"";

/// An app on a database, by way of a pooler.
fn through(pooler: &PgBouncer, db: TestDb, app: AppBuilder) -> AppBuilder {
    app.database_url(pooler.url(&db.name))
        .database_toml(BY_TRANSACTION)
        .on(db)
}

/// Server sessions on the database, without the one that asks.
async fn sessions(db: &TestDb) -> i64 {
    db.one("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        .await
}

/// A configuration file for the command line.
fn config(folder: &tempfile::TempDir, url: &str, lines: &str) -> std::path::PathBuf {
    let path = folder.path().join("oncehook.toml");
    let mut text = String::from("[listen]\npublic = \"127.0.0.1:0\"\napi = \"127.0.0.1:0\"\n");
    writeln!(text, "[database]\nurl = {url:?}\n{lines}").unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

fn message(n: usize) -> Message {
    Message::original(n, [PAID, REFUNDED, SHIPPED][n % 3])
}

/// Twenty clients send to two nodes: every event, a copy of each third, a conflict of each tenth.
async fn send_all(
    trial: &Trial,
    nodes: [std::net::SocketAddr; 2],
    numbers: std::ops::Range<usize>,
) {
    let mut clients = JoinSet::new();
    for client in 0..20 {
        let mine: Vec<usize> = numbers.clone().skip(client).step_by(20).collect();
        let provider = trial.provider.clone();
        clients.spawn(async move {
            for n in mine {
                let original = message(n);
                let mut requests = vec![original];
                if n % 3 == 0 {
                    requests.push(requests[0].copy());
                }
                if n % 10 == 0 {
                    requests.push(requests[0].conflict());
                }
                for (turn, request) in requests.iter().enumerate() {
                    while provider
                        .send(nodes[(n + turn) % 2], request)
                        .await
                        .is_none_or(|told| told.status != 200)
                    {
                        tokio::time::sleep(BACK_OFF).await;
                    }
                }
            }
        });
    }
    clients.join_all().await;
}

#[tokio::test]
async fn f70_twenty_clients_over_three_sessions_and_a_pooler_that_dies_everything_once() {
    let db = TestDb::new().await;
    let Some(mut pooler) = PgBouncer::start(&db, "transaction", 3).await else {
        return;
    };
    let trial = Trial::new(true, |_, nth| match nth {
        0 => Behaviour::ErrorAfter,
        _ => Behaviour::Good,
    })
    .await;
    let mut app = through(&pooler, db, trial.app(SQL_LINES, CALL_LINES))
        .toml("[dispatch]\npoll = \"50ms\"")
        .start()
        .await;
    let second = app.another_node().await;
    let nodes = [app.public, second.public];

    send_all(&trial, nodes, 0..150).await;
    until("clients share sessions", async || {
        sessions(&app.db).await <= 3
    })
    .await;
    for node in [&*app, &second] {
        // Until the pooler dies below, no statement fails.
        let output = node.output();
        assert!(
            !output.contains("SQLSTATE 26") && !output.contains("database refused"),
            "{output}"
        );
        assert_eq!(readiness(node).await, 200);
    }
    // Lost in the middle, with transactions of both nodes open.
    tokio::join!(send_all(&trial, nodes, 150..300), async {
        until("senders get on", async || app.db.count("event").await > 170).await;
        pooler.restart().await;
    });
    until("nothing is left to do", async || {
        app.db.count("delivery").await == 0
    })
    .await;
    trial.flush().await;
    assert_eq!(trial.judge.acknowledged(), 300);
    let again = "cargo test --test it -- postgres::pooler::f70_twenty";
    trial.judge.acquit(&app.db.client().await, again).await;
    for node in [&*app, &second] {
        let output = node.output();
        assert!(
            !output.contains("SQLSTATE 26") && !output.contains("SQLSTATE 42P05"),
            "{output}"
        );
    }
}

#[tokio::test]
async fn f70_migrations_of_four_processes_and_commands_go_through_two_sessions() {
    let db = TestDb::blank().await;
    let Some(pooler) = PgBouncer::start(&db, "transaction", 2).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = config(&folder, &pooler.url(&db.name), BY_TRANSACTION);
    let migrate = || oncehook(&path, &["migrate"], &[]);
    let (a, b, c, d) = tokio::join!(migrate(), migrate(), migrate(), migrate());
    let all = [a, b, c, d];
    assert!(all.iter().all(|ran| ran.code == Some(0)), "{all:?}");
    let applied = all.iter().flat_map(|ran| ran.stdout.lines()).count();
    assert_eq!(
        i64::try_from(applied).unwrap(),
        db.count("schema_history").await,
        "{all:?}"
    );
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    until("the lock went with its transaction", async || {
        db.one::<i64>(locks).await == 0
    })
    .await;
    for args in [
        ["check", "--connect"].as_slice(),
        &["migrate", "--dry-run"],
        &["events"],
    ] {
        let ran = oncehook(&path, args, &[]).await;
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    }
    // It has its doubts about a database that no node has served yet.
    let ran = oncehook(&path, &["verify"], &[]).await;
    assert!(ran.stdout.contains("every key has its event"), "{ran:?}");
}

#[tokio::test]
async fn f70_migrations_expect_nothing_of_the_session_that_is_lent() {
    let db = TestDb::blank().await;
    // One session for all: a migration needs no second one, and has the one that was spoiled.
    let Some(pooler) = PgBouncer::start(&db, "transaction", 1).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = config(&folder, &pooler.url(&db.name), BY_TRANSACTION);
    let other = connect(&pooler.url(&db.name)).await.unwrap();
    let spoil =
        "SET search_path = nowhere; SET ROLE pg_monitor; SET default_transaction_read_only = on";
    for args in [["migrate"].as_slice(), &["migrate", "--dry-run"]] {
        other.batch_execute(spoil).await.unwrap();
        let ran = oncehook(&path, args, &[]).await;
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    }
    let owners = "SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = 'oncehook'";
    assert_eq!(db.all::<String>(owners).await, ["postgres"]);
}

/// Books by every way that [`Work`] has.
struct Booker;

#[async_trait::async_trait]
impl Function for Booker {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        const BOOK: &str = "INSERT INTO app.ledger VALUES ($1, $2, 1, $3, $4)";
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&event.id, &event.key, &event.effect_key, &event.attempt];
        match event.event_type.as_deref() {
            Some("f.prepared") => work.execute_prepared(BOOK, &params).await?,
            _ => work.execute(BOOK, &params).await?,
        };
        let rows = work
            .query(
                "SELECT count(*) FROM app.ledger WHERE key = $1",
                &[&event.key],
            )
            .await?;
        Ok(Answer::DoneWith(rows[0].get::<_, i64>(0).to_string()))
    }
}

#[tokio::test]
async fn f70_functions_book_once_by_whatever_way_they_write() {
    let db = Arc::new(TestDb::new().await);
    let Some(pooler) = PgBouncer::start(&db, "transaction", 2).await else {
        return;
    };
    db.execute(LEDGER).await;
    let settings = Settings::parse(&pooler.url(&db.name)).unwrap();
    let settings = settings.pooled_by_transaction(None).unwrap();
    let spec = quick(HandlerSpec::new(
        "ledger",
        every(),
        HandlerKind::Function(Arc::new(Booker)),
    ));
    let inbox = Inbox::with(
        settings,
        Arc::clone(&db),
        vec![stripe_source()],
        vec![spec],
        Some(dispatch()),
    )
    .await;
    for n in 0..20 {
        let kind = ["f.prepared", "f.plain"][n % 2];
        inbox
            .put(&event(&format!("evt_{n}"), kind, json!({})))
            .await;
    }
    for n in 0..20 {
        let (result, timeline) = inbox.until_outcome(&format!("evt_{n}"), "ledger").await;
        assert_eq!(result, "succeeded", "{:?}", timeline.attempts);
        assert_eq!(timeline.outcomes[0].resource.as_deref(), Some("1"));
    }
    assert_eq!(db.count("app.ledger").await, 20);
}

/// Gives a parameter too many at the first try.
struct Surplus;

#[async_trait::async_trait]
impl Function for Surplus {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] = [
            &event.id,
            &event.key,
            &event.effect_key,
            &event.attempt,
            &event.run,
        ];
        let params = if event.attempt == 1 {
            &params
        } else {
            &params[..4]
        };
        work.execute_prepared("INSERT INTO app.ledger VALUES ($1, $2, 1, $3, $4)", params)
            .await?;
        Ok(Answer::Done)
    }
}

#[tokio::test]
async fn a_parameter_that_no_statement_takes_is_an_error_where_sessions_are_lent_too() {
    let db = Arc::new(TestDb::new().await);
    db.execute(LEDGER).await;
    let settings = Settings::parse(&db.url).unwrap();
    let settings = settings.pooled_by_transaction(None).unwrap();
    let kind = HandlerKind::Function(Arc::new(Surplus));
    let spec = quick(HandlerSpec::new("ledger", every(), kind));
    let sources = vec![stripe_source()];
    let inbox = Inbox::with(
        settings,
        Arc::clone(&db),
        sources,
        vec![spec],
        Some(dispatch()),
    )
    .await;
    inbox.put(&event("evt_1", "f.surplus", json!({}))).await;
    let (result, timeline) = inbox.until_outcome("evt_1", "ledger").await;
    assert_eq!(result, "succeeded");
    assert_eq!(timeline.outcomes[0].attempts, 2, "{:?}", timeline.attempts);
    assert_eq!(db.count("app.ledger").await, 1);
}

/// A statement that is a transaction of its own, in a session where anything may be set.
#[tokio::test]
async fn a_statement_alone_has_time_outs_where_sessions_are_lent() {
    let app = booking()
        .database_toml(BY_TRANSACTION)
        .setup(
            "CREATE TABLE app.limits (statement text, lock text, idle text);
             CREATE FUNCTION app.note_limits() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               INSERT INTO app.limits VALUES (current_setting('statement_timeout'), current_setting('lock_timeout'),
                 current_setting('idle_in_transaction_session_timeout'));
               RETURN NEW;
             END $$;
             CREATE TRIGGER note BEFORE INSERT ON oncehook.rejected FOR EACH ROW EXECUTE FUNCTION app.note_limits()",
        )
        .start()
        .await;
    let answer = app.post("stripe", &[], "not signed").await;
    assert_eq!(answer.status(), 401);
    until("the refusal is sampled", async || {
        app.db.count("rejected").await == 1
    })
    .await;
    let limits = "SELECT concat_ws(' ', statement, lock, idle) FROM app.limits";
    assert_eq!(app.db.one::<String>(limits).await, "30s 5s 5s");
}

/// Backends that listen.
async fn listeners(db: &TestDb) -> i64 {
    db.one("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^(LISTEN|NOTIFY) oncehook_work'")
        .await
}

/// One node that only receives and one that handles, which looks by itself every `poll`.
async fn receiver_and_worker(app: AppBuilder, poll: &str) -> (crate::support::TestApp, Node) {
    let mut app = app.sql_handler("ledger", "app.book", QUICK).start().await;
    let toml = app
        .toml()
        .replace("enabled = false", "enabled = true")
        .replace("poll = \"50ms\"", &format!("poll = \"{poll}\""));
    let worker = app.another_node_with(&toml).await;
    (app, worker)
}

#[tokio::test]
async fn f70_another_nodes_events_come_by_the_direct_way_at_once() {
    let db = TestDb::new().await;
    let Some(pooler) = PgBouncer::start(&db, "transaction", 3).await else {
        return;
    };
    let direct = format!("direct_url = {:?}", db.url);
    let app = through(&pooler, db, storing_ledger()).database_toml(&direct);
    let (app, worker) = receiver_and_worker(app, "60s").await;
    until("both listen", async || listeners(&app.db).await == 2).await;
    // What a start brings is over: only a wake-up can bring this one within a minute.
    put(&app, &paid("evt_0")).await;
    until_booked_once(&worker, &app.db, "evt_0").await;
    let start = Instant::now();
    put(&app, &paid("evt_1")).await;
    until_booked_once(&worker, &app.db, "evt_1").await;
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn f70_without_a_direct_way_another_nodes_events_come_by_polling() {
    let db = TestDb::new().await;
    let Some(pooler) = PgBouncer::start(&db, "transaction", 3).await else {
        return;
    };
    let (app, worker) = receiver_and_worker(through(&pooler, db, storing_ledger()), "50ms").await;
    for n in 0..3 {
        let key = format!("evt_{n}");
        put(&app, &paid(&key)).await;
        until_booked_once(&worker, &app.db, &key).await;
    }
    for node in [&*app, &worker] {
        node.until_logged("found by polling").await;
        assert_eq!(node.output().matches("polling").count(), 1, "said once");
    }
}

#[tokio::test]
async fn f70_what_another_client_left_in_the_session_does_not_reach_us() {
    let db = TestDb::new().await;
    // One session for all, so that the next transaction has the one that was spoiled.
    let Some(pooler) = PgBouncer::start(&db, "transaction", 1).await else {
        return;
    };
    let name = &db.name;
    db.execute_outside(&format!("ALTER DATABASE {name} SET search_path = app"))
        .await;
    let app = booking()
        .setup(
            "CREATE SCHEMA evil;
             CREATE TABLE evil.noted (LIKE app.ledger);
             CREATE TABLE app.noted (setting text, who text);
             CREATE TABLE evil.noted2 (setting text, who text);
             DROP TABLE evil.noted;
             ALTER TABLE evil.noted2 RENAME TO noted;
             GRANT USAGE ON SCHEMA evil TO pg_monitor;
             CREATE FUNCTION app.note() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               INSERT INTO noted VALUES (current_setting('synchronous_commit'), current_user);
               RETURN NEW;
             END $$;
             CREATE TRIGGER note AFTER INSERT ON app.ledger FOR EACH ROW EXECUTE FUNCTION app.note();
             CREATE TRIGGER note AFTER INSERT ON oncehook.delivery FOR EACH ROW EXECUTE FUNCTION app.note()",
        );
    let app = through(&pooler, db, app).start().await;
    let other = connect(&pooler.url(&app.db.name)).await.unwrap();
    let spoil = "SET search_path = evil; SET synchronous_commit = off; SET ROLE pg_monitor; \
         SET default_transaction_read_only = on";
    for n in 0..3 {
        other.batch_execute(spoil).await.unwrap();
        let left = other.simple_query("SHOW synchronous_commit").await.unwrap();
        assert!(
            left.iter().any(|m| matches!(m, tokio_postgres::SimpleQueryMessage::Row(r) if r.get(0) == Some("off"))),
            "the session is shared and spoiled"
        );
        let key = format!("evt_{n}");
        until_acknowledged(&app, &paid(&key)).await;
        until("it is booked", async || {
            app.db
                .count(&format!("app.ledger WHERE key = '{key}'"))
                .await
                == 1
        })
        .await;
    }
    let noted = "SELECT DISTINCT setting || ' ' || who FROM app.noted";
    assert_eq!(app.db.all::<String>(noted).await, ["on postgres"]);
    assert_eq!(app.db.count("app.noted").await, 6);
    assert_eq!(app.db.count("evil.noted").await, 0);
    // A connection that is given up takes the session with it, so that a second try may do.
    let output = app.output();
    assert!(!output.contains("SQLSTATE 25"), "{output}");
}

#[tokio::test]
async fn f70_a_stronger_commit_of_the_operator_stays() {
    let db = TestDb::new().await;
    let Some(pooler) = PgBouncer::start(&db, "transaction", 1).await else {
        return;
    };
    let name = &db.name;
    db.execute_outside(&format!(
        "ALTER DATABASE {name} SET synchronous_commit = remote_apply"
    ))
    .await;
    let app = booking().setup(
        "CREATE TABLE app.noted (setting text);
         CREATE FUNCTION app.note() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
           INSERT INTO app.noted VALUES (current_setting('synchronous_commit'));
           RETURN NEW;
         END $$;
         CREATE TRIGGER note AFTER INSERT ON oncehook.delivery FOR EACH ROW EXECUTE FUNCTION app.note()",
    );
    let app = through(&pooler, db, app).start().await;
    let other = connect(&pooler.url(&app.db.name)).await.unwrap();
    other
        .batch_execute("SET synchronous_commit = local")
        .await
        .unwrap();
    put(&app, &paid("evt_1")).await;
    let noted = "SELECT setting FROM app.noted";
    assert_eq!(app.db.all::<String>(noted).await, ["remote_apply"]);
}

#[tokio::test]
async fn f70_a_warning_at_the_commit_comes_through_the_pooler() {
    let db = TestDb::new().await;
    let Some(pooler) = PgBouncer::start(&db, "transaction", 2).await else {
        return;
    };
    let app = through(&pooler, db, booking().setup(WARN_AT_COMMIT))
        .start()
        .await;
    expect_unavailable(&app, &paid("evt_1")).await;
    app.until_logged("not durable").await;
    assert!(put(&app, &paid("evt_1")).await, "a replay, now durable");
    until_booked_once(&app, &app.db, "evt_1").await;
}

#[tokio::test]
async fn f70_a_setting_that_does_not_fit_is_found_at_start_and_named() {
    let db = TestDb::new().await;
    let folder = tempfile::tempdir().unwrap();
    for (mode, lines, fits) in [
        ("transaction", "", false),
        ("transaction", BY_TRANSACTION, true),
        ("session", "", true),
        ("session", BY_TRANSACTION, true),
        ("statement", "", false),
        ("statement", BY_TRANSACTION, false),
    ] {
        // A session pooler has one for each of our connections.
        let size = if mode == "session" { 20 } else { 2 };
        let Some(pooler) = PgBouncer::start(&db, mode, size).await else {
            return;
        };
        let path = config(&folder, &pooler.url(&db.name), lines);
        let ran = oncehook(&path, &["check", "--connect"], &[]).await;
        let expected = i32::from(!fits);
        assert_eq!(ran.code, Some(expected), "{mode} {lines}: {ran:?}");
        if !fits {
            assert!(ran.stderr.contains("database.pooling"), "{ran:?}");
            let ran = oncehook(&path, &["serve"], &[]).await;
            assert_eq!(ran.code, Some(1), "{mode} {lines}: {ran:?}");
            assert!(ran.stderr.contains("database.pooling"), "{ran:?}");
        }
    }
}

#[tokio::test]
async fn f70_named_statements_that_vanish_later_are_503_and_the_log_names_the_setting() {
    let db = TestDb::new().await;
    let Some(mut pooler) = PgBouncer::start(&db, "session", 20).await else {
        return;
    };
    let app = booking()
        .database_url(pooler.url(&db.name))
        .on(db)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;

    pooler.restart_in("transaction", 2).await;
    let other = connect(&pooler.url(&app.db.name)).await.unwrap();
    until("a statement is missed", async || {
        // The session that was used last is taken, so the next statement has another.
        other.batch_execute("BEGIN").await.unwrap();
        let status = app.post_stripe("stripe", &paid("evt_2")).await.status();
        assert!(status == 200 || status == 503, "{status}");
        other.batch_execute("COMMIT").await.unwrap();
        app.output().contains("database.pooling")
    })
    .await;
    // Whoever was told 503 comes again; nothing is lost, nothing done twice.
    pooler.restart_in("session", 20).await;
    until_acknowledged(&app, &paid("evt_2")).await;
    until_booked_once(&app, &app.db, "evt_2").await;
}

/// Types that are not built in would be asked for by a named statement of the driver.
#[tokio::test]
async fn f70_every_statement_takes_and_gives_built_in_types_only() {
    let db = TestDb::new().await;
    let client = db.client().await;
    // What a handler's own database has.
    client
        .batch_execute(oncehook::store::ledger::INSTALL)
        .await
        .unwrap();
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/sql")).unwrap();
    let mut seen = 0;
    for file in files {
        let path = file.unwrap().path();
        let statement = client
            .prepare(&std::fs::read_to_string(&path).unwrap())
            .await
            .unwrap();
        let columns = statement
            .columns()
            .iter()
            .map(tokio_postgres::Column::type_);
        for type_ in statement.params().iter().chain(columns) {
            assert!(Type::from_oid(type_.oid()).is_some(), "{path:?}: {type_}");
        }
        seen += 1;
    }
    assert!(seen > 20);
}
