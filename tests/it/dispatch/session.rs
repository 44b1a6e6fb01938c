//! What a handler leaves in its session does not reach the next one.

use std::sync::Arc;

use async_trait::async_trait;
use oncehook::dispatch::{
    Answer, Delivered, Function, HandlerError, HandlerKind, HandlerSpec, Work,
};
use serde_json::json;

use crate::crash::{
    QUICK, begin_handling, ledger, paid, put, storing_ledger, until_booked_once, until_metric,
};
use crate::support::bouncer::PgBouncer;
use crate::support::inbox::{Inbox, dispatch, event, every, quick, stripe_source};
use crate::support::{AppBuilder, TestDb, until};

use super::LEDGER;

/// `app.careless` leaves everything behind that a session can hold. `app.note` writes to `noted`
/// wherever that leads, and what it meets.
const CARELESS: &str = "
CREATE SCHEMA evil;
CREATE TABLE evil.noted (key text, met text);
CREATE TABLE app.noted (key text, met text);
CREATE SEQUENCE app.numbers;
CREATE FUNCTION app.careless(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.ledger VALUES (event.id, event.key, 1, event.effect_key, event.attempt);
  SET search_path = evil;
  SET synchronous_commit = off;
  SET enable_indexscan = off;
  PERFORM set_config('app.tenant', 'somebody else', false);
  PERFORM pg_advisory_lock(7002);
  CREATE TEMP TABLE IF NOT EXISTS noted (key text, met text);
  LISTEN oncehook_careless;
  EXECUTE 'DECLARE kept CURSOR WITH HOLD FOR SELECT 1';
  PERFORM nextval('app.numbers');
  IF event.key LIKE '%again' AND event.attempt = 1 THEN
    RAISE EXCEPTION 'again';
  END IF;
END $$;
CREATE FUNCTION app.note(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO noted VALUES (event.key, concat_ws(' ', current_setting('search_path'),
    current_setting('synchronous_commit'), current_setting('enable_indexscan'), 'tenant',
    nullif(current_setting('app.tenant', true), ''),
    (SELECT string_agg(name, ',') FROM pg_cursors WHERE is_holdable),
    (SELECT string_agg(c, ',') FROM pg_listening_channels() c), current_setting('application_name'),
    current_setting('client_encoding')));
END $$";

fn app(db: TestDb) -> AppBuilder {
    let on = |event_type: &str| format!("events = [\"*:{event_type}\"]\nbatch = 1\n{QUICK}");
    ledger()
        .on(db)
        .setup(CARELESS)
        .toml("connections = 1")
        .sql_handler("careless", "app.careless", &on("careless"))
        .sql_handler("note", "app.note", &on("note"))
}

async fn nothing_is_left(app: AppBuilder) {
    let app = app.start().await;
    for round in 0..4 {
        for kind in ["careless", "careless.again", "note"] {
            let event_type = kind.split('.').next().unwrap();
            put(
                &app,
                &event(&format!("{round}.{kind}"), event_type, json!({})),
            )
            .await;
        }
        until("the round is handled", async || {
            app.db.count("delivery").await == 0
        })
        .await;
    }
    let dead = app.db.count("outcome WHERE result <> 'succeeded'").await;
    assert_eq!(dead, 0, "{}", app.output());
    assert_eq!(app.db.count("app.ledger").await, 8);
    assert_eq!(app.db.count("app.noted").await, 4, "no other table was met");
    let met = app
        .db
        .all::<String>("SELECT DISTINCT met FROM app.noted")
        .await;
    assert_eq!(met, ["app on on tenant oncehook UTF8"]);
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7002 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(app.db.one::<i64>(locks).await, 0);
}

#[tokio::test]
async fn what_a_handler_leaves_in_its_session_is_gone_before_the_next() {
    let db = TestDb::new().await;
    search_app(&db).await;
    nothing_is_left(app(db)).await;
}

#[tokio::test]
async fn the_same_where_the_session_is_lent() {
    let db = TestDb::new().await;
    search_app(&db).await;
    let Some(pooler) = PgBouncer::start(&db, "transaction", 2).await else {
        return;
    };
    let url = pooler.url(&db.name);
    let app = app(db)
        .database_url(url)
        .database_toml("pooling = \"transaction\"");
    nothing_is_left(app).await;
}

async fn search_app(db: &TestDb) {
    let name = &db.name;
    db.execute_outside(&format!("ALTER DATABASE {name} SET search_path = app"))
        .await;
}

#[tokio::test]
async fn a_role_that_a_handler_takes_on_ends_with_the_handler() {
    let db = TestDb::new().await;
    let role = db.role("lowly", "").await;
    let lowering = format!(
        "CREATE FUNCTION app.lowering(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
         BEGIN PERFORM app.book(event); EXECUTE 'SET ROLE {role}'; END $$"
    );
    let app = ledger()
        .on(db)
        .setup(&lowering)
        .toml("connections = 1")
        .sql_handler("ledger", "app.lowering", &format!("batch = 1\n{QUICK}"))
        .start()
        .await;
    for key in ["evt_1", "evt_2"] {
        put(&app, &paid(key)).await;
        let outcome = until_booked_once(&app, &app.db, key).await;
        assert_eq!(outcome["attempts"], 1, "{key}");
    }
}

/// What is committed is counted and logged, whatever becomes of the session.
#[tokio::test]
async fn what_is_committed_is_reported_though_its_session_cannot_be_cleaned() {
    let db = TestDb::new().await;
    // Found before the server's own, so that the cleaning behind every COMMIT fails.
    let name = &db.name;
    db.execute_outside(&format!(
        "ALTER DATABASE {name} SET search_path = app, pg_catalog"
    ))
    .await;
    let app = ledger()
        .on(db)
        .setup(
            "CREATE FUNCTION app.pg_advisory_unlock_all() RETURNS void LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'not today'; END $$",
        )
        .sql_handler("ledger", "app.book", QUICK)
        .start()
        .await;
    for n in 0..3 {
        let key = format!("evt_{n}");
        put(&app, &paid(&key)).await;
        let outcome = until_booked_once(&app, &app.db, &key).await;
        assert_eq!(outcome["attempts"], 1);
    }
    until_metric(&app, "oncehook_deliveries_total", |done| done >= 3.0).await;
    app.until_logged("cannot be taken back").await;
}

const NEIGHBOURS: usize = 5;

#[tokio::test]
async fn a_role_that_a_handler_takes_on_is_not_its_neighbours() {
    let db = TestDb::new().await;
    let role = db.role("lowly", "").await;
    let lowering = format!(
        "CREATE FUNCTION app.lowering(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
         BEGIN PERFORM app.book(event); EXECUTE 'SET ROLE {role}'; END $$"
    );
    let mut app = storing_ledger()
        .on(db)
        .setup(&lowering)
        .sql_handler("ledger", "app.lowering", QUICK)
        .start()
        .await;
    for n in 0..NEIGHBOURS {
        put(&app, &paid(&format!("evt_{n}"))).await;
    }
    // All of them in one claim.
    begin_handling(&mut app).await;
    for n in 0..NEIGHBOURS {
        let outcome = until_booked_once(&app, &app.db, &format!("evt_{n}")).await;
        assert_eq!(outcome["attempts"], 1, "{outcome}");
    }
}

/// Books, then takes on the role.
struct Lowering(String);

#[async_trait]
impl Function for Lowering {
    async fn handle(&self, event: &Delivered, work: &Work<'_>) -> Result<Answer, HandlerError> {
        work.execute(
            "INSERT INTO app.ledger VALUES ($1, $2, 1, $3, $4)",
            &[&event.id, &event.key, &event.effect_key, &event.attempt],
        )
        .await?;
        work.execute(&format!("SET ROLE {}", self.0), &[]).await?;
        Ok(Answer::Done)
    }
}

#[tokio::test]
async fn nor_is_that_of_a_function() {
    let storing = Inbox::start(LEDGER, vec![]).await;
    let role = storing.db.role("lowly", "").await;
    let db = Arc::clone(&storing.db);
    let kind = HandlerKind::Function(Arc::new(Lowering(role.clone())));
    let spec = quick(HandlerSpec::new("ledger", every(), kind));
    let sources = vec![stripe_source()];
    let storing = Inbox::on(Arc::clone(&db), sources.clone(), vec![spec.clone()], None).await;
    for n in 0..NEIGHBOURS {
        storing.put(&paid(&format!("evt_{n}"))).await;
    }
    let inbox = Inbox::on(Arc::clone(&db), sources, vec![spec], Some(dispatch())).await;
    for n in 0..NEIGHBOURS {
        let (result, timeline) = inbox.until_outcome(&format!("evt_{n}"), "ledger").await;
        assert_eq!(result, "succeeded");
        assert_eq!(timeline.outcomes[0].attempts, 1, "{:?}", timeline.attempts);
    }
}
