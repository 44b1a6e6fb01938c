//! Lanes: one delivery at a time for one business object, in the order in which they came; others
//! go on meanwhile.

mod cost;
mod crash;
mod dead;
mod fire;
mod look;
mod order;
mod uncertain;

use std::collections::BTreeMap;

use oncehook::HandlerSpec;
use oncehook::domain::LaneBy;
use serde_json::{Value, json};

use crate::support::TestDb;
use crate::support::inbox::{event, sql};

/// Writes a line per effect; their numbers say in which order the effects came. The first try of
/// every third event fails, so that without lanes the next one would overtake it. A strict reader
/// of `app.broken` says which can never be done.
const LINES: &str = "
CREATE SCHEMA app;
CREATE TABLE app.line (no bigint GENERATED ALWAYS AS IDENTITY, lane text, n int NOT NULL);
CREATE TABLE app.broken (key text PRIMARY KEY);
CREATE FUNCTION app.write(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  n int := (oncehook.body_json(event) -> 'data' -> 'object' ->> 'amount')::int;
BEGIN
  INSERT INTO app.line (lane, n) VALUES (event.entity, n);
  IF event.attempt = 1 AND n % 3 = 0 THEN RAISE EXCEPTION 'busy'; END IF;
  IF EXISTS (SELECT FROM app.broken WHERE key = event.key) THEN RAISE EXCEPTION 'no such account' USING ERRCODE = 'OH001'; END IF;
END $$;
";

/// The event of this number about an object.
fn about(object: &str, n: usize) -> Value {
    event(
        &key(object, n),
        "charge.updated",
        json!({"id": object, "amount": n}),
    )
}

fn key(object: &str, n: usize) -> String {
    format!("evt_{object}_{n}")
}

/// Handler `lines`, whose lanes are the events' objects.
fn lines() -> HandlerSpec {
    HandlerSpec {
        lane: Some(LaneBy::Entity),
        ..sql("lines", "app.write")
    }
}

/// The numbers written per object, in order.
async fn written(db: &TestDb) -> BTreeMap<String, Vec<i32>> {
    let mut written: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for row in db
        .rows("SELECT lane, n FROM app.line ORDER BY no", &[])
        .await
    {
        written.entry(row.get(0)).or_default().push(row.get(1));
    }
    written
}

/// State of the delivery of an event, if it has one.
async fn state(db: &TestDb, key: &str) -> Option<String> {
    let sql = "SELECT d.state FROM oncehook.delivery d JOIN oncehook.event e ON e.id = d.event_id WHERE e.key = $1";
    db.rows(sql, &[&key]).await.first().map(|row| row.get(0))
}
