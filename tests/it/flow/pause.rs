//! Handlers and sources that are paused by command.

use std::time::{Duration, Instant};

use oncehook::store::flow::Pausable;
use oncehook::store::verify::{CheckState, VerifyOptions};
use serde_json::json;

use crate::crash::http::calling;
use crate::crash::{
    QUICK, booking, ledger, metric, paid, put, storing_ledger, timeline, until_booked_once,
    until_metric,
};
use crate::support::{Gate, Receiver, Reply, oncehook, until};

use super::{operator, pause, put_many, resume, until_known};

const HANDLER: &str = "oncehook_handler_paused";
const SOURCE: &str = "oncehook_source_paused";

#[tokio::test]
async fn a_paused_handler_begins_nothing_on_any_node_and_ends_what_runs() {
    let receiver = Receiver::start().await;
    let answer = Gate::closed();
    receiver.reply(Reply::status(200).behind(&answer));
    let mut app = calling(&receiver, "/", "").start().await;
    let other = app.another_node().await;
    put(&app, &paid("evt_running")).await;
    receiver.until_requests(1).await;
    pause(&app.db, Pausable::Handler, "ledger").await;
    until_known(&app, HANDLER, true).await;
    until_known(&other, HANDLER, true).await;
    put_many(&app, "stripe", "evt", 5).await;
    put_many(&other, "stripe", "evt_other", 5).await;
    // What was claimed before ends normally.
    answer.open();
    let outcome = app.until_outcome("stripe", "evt_running", "ledger").await;
    assert_eq!(outcome["result"], "succeeded");
    // Wake-ups have come for every event: nothing has begun.
    assert_eq!(
        app.db.count("delivery WHERE first_try_at IS NULL").await,
        10
    );
    assert_eq!(receiver.requests().len(), 1);

    let all = timeline(&app, "evt_0").await;
    let waiting = &all["deliveries"][0];
    assert_eq!(waiting["handler_paused"]["by"], "eva", "{all}");
    assert_eq!(waiting["handler_paused"]["reason"], "a test", "{all}");
    let shown = oncehook(&app.config(), &["show", "stripe", "evt_0"], &[]).await;
    let said = shown.said();
    assert!(
        said.contains("handler paused since ") && said.contains(" by eva: a test"),
        "{said}"
    );

    resume(&app.db, Pausable::Handler, "ledger").await;
    until("all are done", async || app.db.count("outcome").await == 11).await;
    assert_eq!(receiver.requests().len(), 11);
    let actions: Vec<String> = app
        .db
        .all("SELECT action || ' ' || subject || ' ' || actor FROM oncehook.audit ORDER BY id")
        .await;
    assert_eq!(
        actions,
        ["handler.pause ledger eva", "handler.resume ledger eva"]
    );
    app.db.verify().await;
}

#[tokio::test]
async fn a_node_that_starts_during_a_pause_keeps_it() {
    let mut app = booking().start().await;
    pause(&app.db, Pausable::Handler, "ledger").await;
    until_known(&app, HANDLER, true).await;
    put(&app, &paid("evt_1")).await;
    app.restart().await;
    until_known(&app, HANDLER, true).await;
    put(&app, &paid("evt_2")).await;
    assert_eq!(app.db.count("delivery WHERE first_try_at IS NULL").await, 2);
    resume(&app.db, Pausable::Handler, "ledger").await;
    until_booked_once(&app, &app.db, "evt_1").await;
    until_booked_once(&app, &app.db, "evt_2").await;
}

#[tokio::test]
async fn events_of_a_paused_source_are_stored_and_wait_while_others_go_on() {
    let app = booking().stripe("other").start().await;
    pause(&app.db, Pausable::Source, "stripe").await;
    until_known(&app, SOURCE, true).await;
    put_many(&app, "stripe", "evt", 20).await;
    put_many(&app, "other", "evt_other", 20).await;
    until("the other's are done, these are set aside", async || {
        app.db.count("outcome").await == 20
            && app
                .db
                .count("delivery WHERE paused_source IS NOT NULL")
                .await
                == 20
    })
    .await;
    // Nothing of them shows that they were claimed at all.
    let traces = "delivery WHERE first_try_at IS NOT NULL OR failures > 0 OR losses > 0";
    assert_eq!(app.db.count(traces).await, 0);
    assert_eq!(app.db.count("attempt").await, 0);
    let all = timeline(&app, "evt_3").await;
    assert_eq!(all["state"], "pending");
    assert_eq!(all["deliveries"][0]["source_paused"]["by"], "eva", "{all}");

    // By order, and so neither late nor overdue.
    app.db
        .execute("UPDATE oncehook.delivery SET run_at = now() - interval '2 h'")
        .await;
    let found = app.db.verify_with(&VerifyOptions::everything()).await;
    let state = |name: &str| {
        found
            .checks
            .iter()
            .find(|c| c.check == name)
            .map(|c| c.state)
    };
    assert_eq!(state("overdue"), Some(CheckState::Ok), "{found}");
    assert_eq!(state("paused"), Some(CheckState::Note), "{found}");
    assert!(
        found.holds && found.to_string().contains("by eva: a test"),
        "{found}"
    );

    resume(&app.db, Pausable::Source, "stripe").await;
    until("all are done", async || app.db.count("delivery").await == 0).await;
    assert_eq!(app.db.count("app.ledger").await, 40);
    app.db.verify().await;
}

/// An answer "not yet" was a try: what is set aside after it keeps the time from which `retry.for` counts.
#[tokio::test]
async fn what_had_its_first_try_before_the_pause_keeps_its_time() {
    let early = "CREATE FUNCTION app.early(oncehook.delivered) RETURNS jsonb LANGUAGE sql AS
                 $$ SELECT '{\"result\": \"not_yet\", \"reason\": \"no order\"}'::jsonb $$";
    let handler = ledger().setup(early).sql_handler("ledger", "app.early", "");
    let app = handler.start().await;
    put(&app, &paid("evt_1")).await;
    until("it was tried", async || {
        app.db.count("delivery WHERE not_yet > 0").await == 1
    })
    .await;
    pause(&app.db, Pausable::Source, "stripe").await;
    until_known(&app, SOURCE, true).await;
    let due = "UPDATE oncehook.delivery SET run_at = now() WHERE paused_source IS NULL AND state = 'ready'";
    app.db.execute(due).await;
    let aside = "delivery WHERE paused_source IS NOT NULL";
    until("it is set aside", async || app.db.count(aside).await == 1).await;
    let kept = format!("{aside} AND first_try_at IS NOT NULL");
    assert_eq!(app.db.count(&kept).await, 1);
}

#[tokio::test]
async fn paused_backlog_of_a_handler_is_not_overdue_and_not_late() {
    let mut app = booking().start().await;
    pause(&app.db, Pausable::Handler, "ledger").await;
    until_known(&app, HANDLER, true).await;
    put(&app, &paid("evt_1")).await;
    app.db
        .execute("UPDATE oncehook.delivery SET run_at = now() - interval '2 h'")
        .await;
    let found = app.db.verify_with(&VerifyOptions::everything()).await;
    let overdue = found.checks.iter().find(|c| c.check == "overdue").unwrap();
    assert_eq!(overdue.state, CheckState::Ok, "{found}");
    // Gauges are read at the start.
    app.restart().await;
    until_metric(&app, "oncehook_deliveries_paused", |n| n >= 1.0).await;
    until_metric(&app, "oncehook_deliveries_late", |n| n == 0.0).await;
    until_metric(&app, "oncehook_oldest_ready_seconds", |s| s < 1.0).await;
}

#[tokio::test]
async fn the_commands_and_the_api_pause_list_and_refuse() {
    let app = booking().start().await;
    let config = app.config();
    let run = async |args: &[&str]| oncehook(&config, args, &[]).await;
    let paused = run(&["handlers", "pause", "ledger", "--reason", "restore"]).await;
    assert_eq!(paused.code, Some(0), "{}", paused.said());
    let again = run(&["handlers", "pause", "ledger"]).await;
    assert_eq!(again.code, Some(1));
    assert!(
        again.said().contains("is paused already, by cli:"),
        "{}",
        again.said()
    );
    let unknown = run(&["sources", "pause", "nobody"]).await;
    assert_eq!(unknown.code, Some(1));
    assert!(
        unknown.said().contains("there is no source \"nobody\""),
        "{}",
        unknown.said()
    );
    let listed = run(&["handlers", "list"]).await.stdout;
    assert!(
        listed.starts_with("ledger") && listed.contains("paused since"),
        "{listed}"
    );
    assert!(listed.contains(": restore, 0 due, 0 under way"), "{listed}");

    let post = async |path: &str, body: &str| {
        let answer = app
            .http
            .post(format!("http://{}{path}", app.api))
            .header("Content-Type", "application/json")
            .body(body.to_owned())
            .send()
            .await
            .unwrap();
        answer.status().as_u16()
    };
    let (_, handlers) = app.get("/v1/handlers").await;
    assert_eq!(handlers[0]["paused"]["reason"], "restore", "{handlers}");
    assert_eq!(handlers[0]["breaker"], json!(null), "{handlers}");
    assert_eq!(post("/v1/handlers/ledger/resume", "{}").await, 200);
    assert_eq!(post("/v1/handlers/ledger/resume", "{}").await, 409);
    assert_eq!(
        post("/v1/sources/stripe/pause", r#"{"reason":"x"}"#).await,
        200
    );
    assert_eq!(post("/v1/sources/nobody/pause", "{}").await, 404);
    assert_eq!(
        post("/v1/sources/stripe/pause", r#"{"why":"x"}"#).await,
        400
    );
    let (_, sources) = app.get("/v1/sources").await;
    assert_eq!(sources[0]["paused"]["by"], "api:local", "{sources}");
    let listed = run(&["sources", "list"]).await.stdout;
    assert!(
        listed.contains("paused since") && listed.contains("by api:local: x"),
        "{listed}"
    );
    let resumed = run(&["sources", "resume", "stripe"]).await;
    assert_eq!(resumed.code, Some(0), "{}", resumed.said());
    let actions: Vec<String> = app
        .db
        .all("SELECT action FROM oncehook.audit ORDER BY id")
        .await;
    assert_eq!(
        actions,
        [
            "handler.pause",
            "handler.resume",
            "source.pause",
            "source.resume"
        ]
    );
}

/// Rows of a paused source stand in front of others of the same handler. `FLOW_ROWS` says how many.
#[tokio::test]
async fn what_a_paused_source_has_in_front_does_not_hold_up_the_others() {
    let rows: i64 = std::env::var("FLOW_ROWS").map_or(5_000, |rows| rows.parse().unwrap());
    let app = ledger()
        .stripe("other")
        .sql_handler("ledger", "app.book", QUICK)
        .start()
        .await;
    put(&app, &paid("evt_0")).await;
    until_booked_once(&app, &app.db, "evt_0").await;
    pause(&app.db, Pausable::Source, "stripe").await;
    until_known(&app, SOURCE, true).await;
    app.db
        .execute(&format!(
            "WITH more AS (
               INSERT INTO oncehook.event (id, request_id, item_offset, item_length, source_id, key, correlation_id, routes)
               SELECT oncehook.uuid7(now()), request_id, item_offset, item_length, source_id, 'evt_copy', correlation_id, routes
                 FROM oncehook.event, generate_series(1, {rows}) n WHERE key = 'evt_0' RETURNING id)
             INSERT INTO oncehook.delivery (event_id, handler_id, run_at)
             SELECT m.id, h.id, now() - interval '1 h' FROM more m, oncehook.handler h"
        ))
        .await;
    let began = Instant::now();
    let answer = app.post_stripe("other", &paid("evt_1")).await;
    assert_eq!(answer.status(), 200);
    let deadline =
        Duration::from_secs(30) + Duration::from_micros(100) * u32::try_from(rows).unwrap();
    loop {
        if app.db.count("app.ledger WHERE key = 'evt_1'").await == 1 {
            break;
        }
        assert!(began.elapsed() < deadline, "it waits behind them");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let first = began.elapsed();
    let aside = "delivery WHERE paused_source IS NOT NULL";
    let at_first = app.db.count(aside).await;
    while app.db.count(aside).await < rows {
        assert!(began.elapsed() < deadline, "not all are set aside");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all_aside = began.elapsed();
    assert_eq!(
        app.db.count("app.ledger").await,
        2,
        "nothing of them has run"
    );
    // With all of them aside, the next of another source is a matter of milliseconds.
    let began = Instant::now();
    let answer = app.post_stripe("other", &paid("evt_2")).await;
    assert_eq!(answer.status(), 200);
    until("it is done", async || {
        app.db.count("app.ledger WHERE key = 'evt_2'").await == 1
    })
    .await;
    let next = began.elapsed();
    eprintln!(
        "{rows} rows of a paused source in front: the first behind them done after {first:?} ({at_first} aside), \
         all aside after {all_aside:?}, the next one after {next:?}"
    );
    let began = Instant::now();
    operator(&app.db)
        .resume(Pausable::Source, "stripe", None, "eva")
        .await
        .unwrap();
    while app.db.count(aside).await > 0 {
        assert!(began.elapsed() < deadline, "not all are returned");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eprintln!("all returned after {:?}", began.elapsed());
    if rows <= 10_000 {
        until("all are done", async || app.db.count("delivery").await == 0).await;
        assert_eq!(app.db.count("app.ledger").await, rows + 3);
    }
}

#[tokio::test]
async fn what_was_set_aside_is_returned_by_one_task_of_a_node() {
    let app = booking().stripe("quiet").start().await;
    pause(&app.db, Pausable::Source, "stripe").await;
    until_known(&app, SOURCE, true).await;
    put(&app, &paid("evt_1")).await;
    let aside = "delivery WHERE paused_source IS NOT NULL";
    until("it is set aside", async || app.db.count(aside).await == 1).await;
    pause(&app.db, Pausable::Handler, "ledger").await;
    until_known(&app, HANDLER, true).await;
    // Nobody can write what is open meanwhile, and the node looks again every 50 ms.
    let holder = app.db.client().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE oncehook.delivery IN SHARE ROW EXCLUSIVE MODE")
        .await
        .unwrap();
    resume(&app.db, Pausable::Source, "stripe").await;
    let returning = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%delivery_aside_end%'";
    let mut most = 0;
    for round in 0..6 {
        // A poll has passed whenever the node knows what nobody has told it.
        let quiet = round % 2 == 0;
        let set = if quiet {
            "now(), paused_by = 'eva'"
        } else {
            "NULL, paused_by = NULL"
        };
        app.db
            .execute(&format!(
                "UPDATE oncehook.source SET paused_at = {set} WHERE name = 'quiet'"
            ))
            .await;
        until(&format!("quiet is {quiet}"), async || {
            most = app.db.one::<i64>(returning).await.max(most);
            metric(&app, SOURCE).await == Some(f64::from(u8::from(quiet)))
        })
        .await;
    }
    assert_eq!(most, 1);
    holder.batch_execute("COMMIT").await.unwrap();
    resume(&app.db, Pausable::Handler, "ledger").await;
    until_booked_once(&app, &app.db, "evt_1").await;
    app.db.verify().await;
}

#[tokio::test]
async fn what_is_in_front_is_not_set_aside_any_more_once_the_source_is_resumed() {
    let app = storing_ledger()
        .sql_handler("ledger", "app.book", QUICK)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    let client = app.db.client().await;
    let statement = include_str!("../../../src/store/sql/delivery_aside_front.sql");
    let ids = async |table: &str| -> i32 {
        let sql = format!("SELECT id FROM oncehook.{table}");
        app.db.one(&sql).await
    };
    let (handler, source) = (ids("handler").await, ids("source").await);
    let set = async || -> u64 {
        let wanted = (handler, source, 10_i64);
        let set = client
            .execute(statement, &[&wanted.0, &wanted.1, &wanted.2])
            .await;
        set.unwrap()
    };
    assert_eq!(set().await, 0);
    pause(&app.db, Pausable::Source, "stripe").await;
    assert_eq!(set().await, 1);
}

#[tokio::test]
async fn a_lane_whose_first_event_is_of_a_paused_source_waits_visibly() {
    let lane = format!("lane = \"entity\"\n{QUICK}");
    let mut app = ledger()
        .stripe("other")
        .sql_handler("ledger", "app.book", &lane)
        .start()
        .await;
    pause(&app.db, Pausable::Source, "stripe").await;
    until_known(&app, SOURCE, true).await;
    put(&app, &paid("evt_1")).await;
    until("it is set aside", async || {
        let aside = "delivery WHERE paused_source IS NOT NULL";
        app.db.count(aside).await == 1
    })
    .await;
    put_many(&app, "other", "evt", 1).await;
    let line = ["show", "other", "evt_0"];
    let shown = oncehook(&app.config(), &line, &[]).await;
    let said = shown.said();
    let behind = "lane ch_1 behind stripe evt_1 (ready, its source paused since ";
    assert!(said.contains(behind), "{said}");
    // Read anew at the start.
    app.restart().await;
    until_metric(&app, "oncehook_lanes_paused", |n| n >= 1.0).await;
    resume(&app.db, Pausable::Source, "stripe").await;
    until("both are done", async || app.db.count("outcome").await == 2).await;
    app.db.verify().await;
}
