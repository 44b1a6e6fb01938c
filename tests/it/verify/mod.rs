//! `oncehook verify`: a system at work shows nothing, every kind of damage is found.

mod cases;
mod command;
pub(crate) mod cost;
mod damage;
mod load;
mod story;

use oncehook::dispatch::{HandlerKind, HandlerSpec};
use oncehook::domain::Pattern;
use oncehook::store::ReplayRequest;
use oncehook::store::verify::{CheckState, Verification};
use serde_json::{Value, json};

use crate::support::inbox::{event, quick};

/// Books, then answers as the event's type says.
const JUDGE: &str = "
CREATE FUNCTION app.judge(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.book(event);
  IF event.type = 'a.again' AND event.attempt < 3 OR event.type = 'o.never' THEN
    RAISE EXCEPTION 'not now';
  ELSIF event.type = 'a.dead' THEN
    RAISE EXCEPTION 'no account' USING ERRCODE = 'OH001';
  END IF;
  RETURN CASE event.type WHEN 'a.no' THEN '{\"result\": \"failed\", \"reason\": \"no\"}'::jsonb
                         WHEN 'a.skip' THEN '{\"result\": \"skip\", \"reason\": \"old\"}'::jsonb END;
END $$";

/// A handler for some types.
fn judge(name: &str, events: &[&str]) -> HandlerSpec {
    let patterns = events.iter().map(|p| Pattern::parse(p).unwrap()).collect();
    let call = "app.judge".into();
    quick(HandlerSpec::new(name, patterns, HandlerKind::Sql { call }))
}

fn ledger() -> HandlerSpec {
    judge("ledger", &["*:a.*", "*:charge.*"])
}

fn mail() -> HandlerSpec {
    judge("mail", &["*:charge.*"])
}

/// Takes what nobody took when it came.
fn late() -> HandlerSpec {
    judge("late", &["*:z.*"])
}

fn paid(id: &str) -> Value {
    event(id, "charge.succeeded", json!({"id": "ch_1", "amount": 5}))
}

fn replay_of(key: &str, handler: &str, force: bool) -> ReplayRequest {
    ReplayRequest {
        source: "stripe".into(),
        key: key.into(),
        handler: handler.into(),
        force,
        expected_run: None,
        reason: "a test".into(),
        actor: "test".into(),
    }
}

/// What is neither OK nor about the shared cluster, which runs without fsync.
fn findings(verification: &Verification) -> Vec<(&str, CheckState)> {
    let checks = verification.checks.iter();
    checks
        .filter(|check| check.state != CheckState::Ok && check.check != "durability")
        .map(|check| (check.check, check.state))
        .collect()
}
