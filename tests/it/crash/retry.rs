//! Failures: what is retried, when, and who is not kept waiting.

use serde_json::{Value, json};

use crate::support::inbox::event;
use crate::support::until;

use super::{
    QUICK, begin_handling, booked, ledger, paid, put, storing_ledger, until_booked_once, verdicts,
};

/// Fails the events of one id.
const PICKY: &str = "
CREATE FUNCTION app.picky(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.book(event);
  IF event.key = 'evt_bad' THEN RAISE EXCEPTION 'no, and never'; END IF;
END $$";

#[tokio::test]
async fn f48_one_bad_event_among_100_delays_no_good_one_and_is_tried_no_more_when_dead() {
    let patient = "retry = { for = \"0s\", first = \"1h\", max = \"1h\" }";
    let quick = "retry = { for = \"0s\", first = \"10ms\", max = \"10ms\" }";
    let lines = format!("{patient}\nbatch = 5");
    let mut app = storing_ledger()
        .setup(PICKY)
        .sql_handler("ledger", "app.picky", &lines)
        .env("ONCEHOOK_DISPATCH__CONNECTIONS", "1")
        .start()
        .await;
    // The bad one is the first in line.
    put(&app, &paid("evt_bad")).await;
    for n in 0..99 {
        put(&app, &paid(&format!("evt_{n}"))).await;
    }
    begin_handling(&mut app).await;
    until("the good ones are done", async || {
        app.db.count("app.ledger").await == 99
    })
    .await;
    assert_eq!(verdicts(&app, "evt_bad").await, ["retry"]);
    // With its budget spent it is dead, and gone from the table.
    let impatient = app.toml().replace(patient, quick);
    app.reconfigure(&impatient);
    app.restart().await;
    app.db
        .execute("UPDATE oncehook.delivery SET run_at = now()")
        .await;
    let outcome = app.until_outcome("stripe", "evt_bad", "ledger").await;
    assert_eq!(
        (&outcome["result"], &outcome["attempts"]),
        (&json!("dead"), &json!(12))
    );
    assert!(
        outcome["reason"]
            .as_str()
            .unwrap()
            .contains("retry budget spent")
    );
    assert_eq!(app.db.count("delivery").await, 0);
    // Its failure made no event and no work, and it stays as it is.
    assert_eq!(app.db.count("event").await, 100);
    put(&app, &paid("evt_next")).await;
    until_booked_once(&app, &app.db, "evt_next").await;
    assert_eq!(verdicts(&app, "evt_bad").await, ["retry"; 12]);
    app.db.verify().await;
}

#[tokio::test]
async fn f49_a_thousand_failures_at_once_come_back_spread_over_the_whole_delay() {
    // So long that not even the shortest delay is over while the test runs.
    let lines = "retry = { for = \"1d\", first = \"10000h\", max = \"10000h\" }\nbatch = 200";
    let longest_s = 36e6;
    let mut app = storing_ledger()
        .setup("CREATE FUNCTION app.down(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'down'; END $$")
        .sql_handler("ledger", "app.down", lines)
        .start()
        .await;
    put(&app, &paid("evt_0")).await;
    // The others as copies in the table: it is not the way in that is tested.
    app.db
        .execute(
            "WITH more AS (
               INSERT INTO oncehook.event (id, request_id, item_offset, item_length, source_id, key, correlation_id, routes)
               SELECT oncehook.uuid7(now()), request_id, item_offset, item_length, source_id, 'evt_' || n, correlation_id, routes
                 FROM oncehook.event, generate_series(1, 999) n RETURNING id)
             INSERT INTO oncehook.delivery (event_id, handler_id) SELECT m.id, h.id FROM more m, oncehook.handler h",
        )
        .await;
    begin_handling(&mut app).await;
    until("each has failed once", async || {
        app.db.count("delivery WHERE failures = 1").await == 1_000
    })
    .await;
    let delays = "SELECT extract(epoch FROM d.run_at - a.ended_at)::float8 FROM oncehook.delivery d JOIN oncehook.attempt a USING (event_id)";
    let delays: Vec<f64> = app.db.all(delays).await;
    let within = |from: f64, to: f64| delays.iter().filter(|d| (from..to).contains(*d)).count();
    // The two times are written some milliseconds apart.
    assert_eq!(within(0.0, longest_s + 1.0), 1_000, "none beyond the cap");
    let tenths: Vec<usize> = (0..10)
        .map(f64::from)
        .map(|n| within(n * longest_s / 10.0, (n + 1.0) * longest_s / 10.0))
        .collect();
    assert!(tenths.iter().all(|n| (50..=150).contains(n)), "{tenths:?}");
}

#[tokio::test]
async fn f50_an_event_that_comes_before_its_object_is_done_when_the_object_is_there() {
    let app = ledger()
        .setup(
            "CREATE TABLE app.orders (id text PRIMARY KEY, paid bool NOT NULL DEFAULT false);
             CREATE FUNCTION app.pay(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM app.book(event);
               UPDATE app.orders SET paid = true WHERE id = oncehook.body_json(event) #>> '{data,object,order}';
               IF NOT FOUND THEN RAISE EXCEPTION 'the order is not there yet'; END IF;
             END $$",
        )
        .sql_handler("ledger", "app.pay", QUICK)
        .start()
        .await;
    put(
        &app,
        &event(
            "evt_1",
            "charge.succeeded",
            json!({"order": "o_1", "amount": 5}),
        ),
    )
    .await;
    until("it has failed twice", async || {
        verdicts(&app, "evt_1").await.len() >= 2
    })
    .await;
    assert_eq!(booked(&app.db, "evt_1").await, 0);
    app.db
        .execute("INSERT INTO app.orders VALUES ('o_1')")
        .await;
    until_booked_once(&app, &app.db, "evt_1").await;
    assert!(app.db.one::<bool>("SELECT paid FROM app.orders").await);
    app.db.verify().await;
}

/// A subscription's state at a second.
fn subscription(event_id: &str, object: &str, state: &str, at_s: i64) -> Value {
    let mut event = event(
        event_id,
        "customer.subscription.updated",
        json!({"id": object, "status": state}),
    );
    event["created"] = at_s.into();
    event
}

#[tokio::test]
async fn f51_a_handler_that_compares_occurred_at_ends_with_the_newest_state_in_any_order() {
    let app = ledger()
        .setup(
            "CREATE TABLE app.subscription (id text PRIMARY KEY, status text NOT NULL, as_of timestamptz NOT NULL, writes int NOT NULL DEFAULT 1);
             CREATE FUNCTION app.apply(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
             DECLARE object jsonb := oncehook.body_json(event) #> '{data,object}';
             BEGIN
               INSERT INTO app.subscription AS s (id, status, as_of) VALUES (object ->> 'id', object ->> 'status', event.occurred_at)
                 ON CONFLICT (id) DO UPDATE SET status = excluded.status, as_of = excluded.as_of, writes = s.writes + 1
                 WHERE s.as_of < excluded.as_of;
               IF NOT FOUND THEN RETURN '{\"result\": \"skip\", \"reason\": \"stale\"}'; END IF;
               RETURN NULL;
             END $$",
        )
        .sql_handler("ledger", "app.apply", QUICK)
        .start()
        .await;
    let at = 1_764_655_200;
    let created =
        |n: usize| subscription(&format!("evt_c{n}"), &format!("sub_{n}"), "incomplete", at);
    let updated =
        |n: usize| subscription(&format!("evt_u{n}"), &format!("sub_{n}"), "active", at + 1);
    // In order, out of order, and many at once.
    put(&app, &created(0)).await;
    app.until_outcome("stripe", "evt_c0", "ledger").await;
    put(&app, &updated(0)).await;
    put(&app, &updated(1)).await;
    app.until_outcome("stripe", "evt_u1", "ledger").await;
    put(&app, &created(1)).await;
    let together = (2..30).flat_map(|n| {
        if n % 2 == 0 {
            [created(n), updated(n)]
        } else {
            [updated(n), created(n)]
        }
    });
    let sender = super::Sender::to(&app);
    let sent: Vec<_> = together.map(|event| sender.spawn(event)).collect();
    for sent in sent {
        assert_eq!(sent.await.unwrap().unwrap().0, 200);
    }
    until("both events of each are finished", async || {
        app.db.count("outcome").await == 60
    })
    .await;
    let states = "app.subscription WHERE status = 'active'";
    assert_eq!(app.db.count(states).await, 30);
    assert_eq!(
        app.until_outcome("stripe", "evt_u0", "ledger").await["result"],
        "succeeded"
    );
    let stale = app.until_outcome("stripe", "evt_c1", "ledger").await;
    assert_eq!(
        (&stale["result"], &stale["reason"]),
        (&json!("skipped"), &json!("stale"))
    );
    // What was written and what was stale adds up.
    let writes: i64 = app.db.one("SELECT sum(writes) FROM app.subscription").await;
    assert_eq!(
        writes + app.db.count("outcome WHERE result = 'skipped'").await,
        60
    );
    app.db.verify().await;
}
