//! Bulk replay: counted first, bounded, audited, and to be repeated without harm.

mod api;
mod cost;
mod count;
mod interrupted;
mod listed;
mod missing;
mod twice;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::crash::{POLL, QUICK};
use crate::support::inbox::event;
use crate::support::{AppBuilder, Ran, TestApp, oncehook, until};

/// A ledger whose account can be closed: then everything is a dead letter.
const ACCOUNT: &str = "
CREATE SCHEMA app;
CREATE TABLE app.open (yes bool);
CREATE TABLE app.ledger (key text NOT NULL, run int NOT NULL, effect_key text NOT NULL);
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.ledger VALUES (event.key, event.run, event.effect_key);
  IF NOT EXISTS (SELECT FROM app.open) THEN RAISE EXCEPTION 'closed' USING ERRCODE = 'OH001'; END IF;
END $$;
";

/// Of a bulk replay: its state, what it counts as run again and as refused.
async fn standing(app: &TestApp, bulk: i64) -> (String, i64, i64) {
    let sql =
        format!("SELECT state, replayed, refused FROM oncehook.bulk_replay WHERE id = {bulk}");
    let rows = app.db.rows(&sql, &[]).await;
    (rows[0].get(0), rows[0].get(1), rows[0].get(2))
}

async fn until_standing(app: &TestApp, bulk: i64, state: &str) {
    until(&format!("bulk {bulk} is {state}"), async || {
        standing(app, bulk).await.0 == state
    })
    .await;
}

/// So many (event, handler) have run so often.
async fn runs(app: &TestApp) -> Vec<(i64, i64)> {
    let sql = "SELECT runs, count(*) FROM (SELECT max(run)::int8 AS runs FROM oncehook.outcome GROUP BY event_id, handler_id) o GROUP BY 1 ORDER BY 1";
    let rows = app.db.rows(sql, &[]).await;
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// So many dead letters of each of two handlers, by events of two types in turn.
async fn dead_letters(events: usize) -> TestApp {
    dead_letters_of(TestApp::builder(), events).await
}

async fn dead_letters_of(builder: AppBuilder, events: usize) -> TestApp {
    let app = builder
        .stripe("stripe")
        .setup(ACCOUNT)
        .toml(POLL)
        .sql_handler("ledger", "app.book", QUICK)
        .sql_handler("report", "app.book", QUICK)
        .start()
        .await;
    for n in 0..events {
        let kind = ["charge.succeeded", "charge.refunded"][n % 2];
        let event = event(&format!("evt_{n}"), kind, json!({"id": format!("ch_{n}")}));
        assert_eq!(app.post_stripe("stripe", &event).await.status(), 200);
    }
    let all = i64::try_from(2 * events).unwrap();
    until("all are dead", async || {
        app.db.count("outcome WHERE result = 'dead'").await == all
    })
    .await;
    app
}

async fn replay(app: &TestApp, args: &[&str]) -> Ran {
    let mut line = vec![
        "replay",
        "--all",
        "--since",
        "1h",
        "--reason",
        "the account is open again",
    ];
    line.extend(args);
    oncehook(&app.config(), &line, &[]).await
}

async fn open(app: &TestApp) {
    app.db.execute("INSERT INTO app.open VALUES (true)").await;
}

async fn until_booked(app: &TestApp, count: i64) {
    until(&format!("{count} are booked"), async || {
        app.db.one::<i64>("SELECT count(*) FROM app.ledger").await == count
            && app.db.count("delivery").await == 0
    })
    .await;
}

#[tokio::test]
async fn it_counts_first_and_runs_what_fits_once() {
    let app = dead_letters(6).await;
    open(&app).await;
    let counted = replay(&app, &["--handler", "ledger"]).await;
    assert_eq!(counted.code, Some(0), "{}", counted.said());
    assert_eq!(counted.stdout, "6 dead: stripe ledger\n");
    assert!(
        counted
            .stderr
            .contains("6 finished runs fit; nothing was run: add --yes"),
        "{}",
        counted.stderr
    );
    assert_eq!(
        (
            app.db.count("audit").await,
            app.db.count("bulk_replay").await
        ),
        (0, 0)
    );

    let ran = replay(
        &app,
        &["--handler", "ledger", "--type", "charge.ref*", "--yes"],
    )
    .await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert!(
        ran.stderr.contains("3 runs are ready, 0 refused"),
        "{}",
        ran.stderr
    );
    until_booked(&app, 3).await;
    let ran = replay(&app, &["stripe", "--every-handler", "--yes", "--json"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["done"]["replayed"], 9, "{report}");
    until_booked(&app, 12).await;
    // Every one in its second run, under the effect key of the first.
    let odd: i64 = app
        .db
        .one("SELECT count(*) FROM oncehook.outcome a JOIN oncehook.outcome b USING (event_id, handler_id) WHERE a.run = 1 AND b.run = 2 AND b.result = 'succeeded' AND a.generation = b.generation")
        .await;
    assert_eq!((odd, app.db.count("outcome").await), (12, 24));
    let nothing = replay(&app, &["--every-handler", "--yes"]).await;
    assert!(
        nothing.stderr.contains("0 runs are ready"),
        "{}",
        nothing.said()
    );
    // The timeline names the bulk, and the audit says what was asked for.
    let shown = oncehook(&app.config(), &["show", "stripe", "evt_0"], &[]).await;
    let bulk = &report["done"]["bulk"];
    assert!(
        shown.stdout.contains(&format!(
            "event.replay (bulk {bulk}): the account is open again"
        )),
        "{}",
        shown.stdout
    );
    let asked: Value = app
        .db
        .one(&format!(
            "SELECT after FROM oncehook.audit WHERE action = 'replay.bulk' AND subject = '{bulk}'"
        ))
        .await;
    assert_eq!(
        (&asked["source"], &asked["handler"], &asked["results"]),
        (&json!("stripe"), &Value::Null, &json!(["dead"]))
    );
    let ended: Value = app
        .db
        .one(&format!(
            "SELECT after FROM oncehook.audit WHERE action = 'replay.bulk.end' AND subject = '{bulk}'"
        ))
        .await;
    assert_eq!(
        (&ended["state"], &ended["replayed"], &ended["refused"]),
        (&json!("complete"), &json!(9), &json!(0))
    );
    app.db.verify().await;
}

#[tokio::test]
async fn its_rate_is_kept() {
    let app = dead_letters(6).await;
    open(&app).await;
    let began = Instant::now();
    let ran = replay(&app, &["--every-handler", "--rate", "6", "--yes"]).await;
    assert!(ran.stderr.contains("12 runs are ready"), "{}", ran.said());
    // Two batches of six, each followed by its second.
    assert!(
        began.elapsed() >= Duration::from_millis(1_900),
        "{:?}",
        began.elapsed()
    );
    until_booked(&app, 12).await;
}

#[tokio::test]
async fn bytes_that_are_not_those_received_are_not_run() {
    let app = dead_letters(3).await;
    open(&app).await;
    app.db
        .execute("UPDATE oncehook.request SET body = overlay(body PLACING '\\x7e'::bytea FROM 5) WHERE id = (SELECT request_id FROM oncehook.event WHERE key = 'evt_1')")
        .await;
    // The signature of another one was changed, its body not.
    app.db
        .execute("UPDATE oncehook.request SET headers = convert_to(replace(convert_from(headers, 'UTF8'), 'v1=', 'v1=00'), 'UTF8') WHERE id = (SELECT request_id FROM oncehook.event WHERE key = 'evt_2')")
        .await;
    let ran = replay(&app, &["--handler", "ledger", "--verify-bytes", "--yes"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.said());
    assert!(
        ran.stdout
            .contains("not stripe evt_1 ledger: its stored bytes are not those that were received"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout
            .contains("not stripe evt_2 ledger: no secret that is configured now verifies it"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr.contains("1 run is ready, 2 refused"),
        "{}",
        ran.stderr
    );
    until_booked(&app, 1).await;
    let booked: String = app.db.one("SELECT key FROM app.ledger").await;
    assert_eq!(booked, "evt_0");
}

#[tokio::test]
async fn what_succeeded_needs_force_and_gets_a_new_effect_key() {
    let app = dead_letters(2).await;
    open(&app).await;
    replay(&app, &["--every-handler", "--yes"]).await;
    until_booked(&app, 4).await;
    let refused = replay(&app, &["--every-handler", "--result", "succeeded", "--yes"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.said());
    assert!(refused.stderr.contains("--force"), "{}", refused.stderr);
    let ran = replay(
        &app,
        &[
            "--handler",
            "ledger",
            "--result",
            "dead,succeeded",
            "--force",
            "--yes",
        ],
    )
    .await;
    assert!(ran.stderr.contains("2 runs are ready"), "{}", ran.said());
    until_booked(&app, 6).await;
    let keys: i64 = app
        .db
        .one("SELECT count(DISTINCT effect_key) FROM app.ledger")
        .await;
    assert_eq!(keys, 6);
    for wrong in [
        vec!["--every-handler", "--handler", "ledger"],
        vec![],
        vec!["--every-handler", "--until", "2h"],
        vec!["--every-handler", "--rate", "0"],
        vec!["--every-handler", "--result", "lost"],
    ] {
        let refused = replay(&app, &wrong).await;
        assert_eq!(refused.code, Some(2), "{wrong:?}: {}", refused.said());
    }
}
