//! An event that comes before the object it is about.

use std::time::Duration;

use oncehook::HandlerSpec;
use oncehook::domain::{LaneBy, RetryPolicy};
use serde_json::json;

use crate::support::inbox::{Inbox, event, sql};
use crate::support::until;

/// Books an update of an order that is there; an order comes by `order.created`, or by hand.
const ORDERS: &str = "
CREATE SCHEMA app;
CREATE TABLE app.orders (id text PRIMARY KEY);
CREATE TABLE app.updates (key text NOT NULL, attempt int NOT NULL);
CREATE FUNCTION app.update_order(event oncehook.delivered) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF event.type = 'order.created' THEN
    INSERT INTO app.orders VALUES (event.entity);
    RETURN NULL;
  END IF;
  INSERT INTO app.updates VALUES (event.key, event.attempt);
  IF NOT EXISTS (SELECT FROM app.orders WHERE id = event.entity) THEN
    RETURN '{\"result\": \"not_yet\", \"reason\": \"the order is not there\"}';
  END IF;
  RETURN NULL;
END $$;
";

/// Handler `orders` that comes again within milliseconds; its time for failures is long over.
fn orders() -> HandlerSpec {
    let mut spec = sql("orders", "app.update_order");
    spec.policy.not_yet = RetryPolicy {
        span: Duration::from_mins(1),
        first: Duration::from_millis(5),
        max: Duration::from_millis(20),
    };
    spec.policy.retry.span = Duration::ZERO;
    spec
}

fn update(id: &str) -> serde_json::Value {
    event(id, "order.updated", json!({"id": "or_1"}))
}

#[tokio::test]
async fn f50_an_event_waits_for_its_object_and_is_done_once_it_is_there() {
    let inbox = Inbox::start(ORDERS, vec![orders()]).await;
    inbox.put(&update("evt_1")).await;
    // More tries than failures would be granted: these are none.
    until(
        "it has come in vain more often than it may fail",
        async || inbox.timeline("evt_1").await.attempts.len() > 13,
    )
    .await;
    let timeline = inbox.timeline("evt_1").await;
    assert_eq!(timeline.event.state, "pending");
    assert_eq!(timeline.deliveries[0].failures, 0);
    assert!(timeline.attempts.iter().all(|a| a.verdict == "not_yet"
        && a.error.as_deref() == Some("the order is not there")));
    assert_eq!(
        inbox
            .db
            .one::<i64>("SELECT count(*) FROM app.updates")
            .await,
        0
    );
    inbox
        .db
        .execute("INSERT INTO app.orders VALUES ('or_1')")
        .await;
    let (result, timeline) = inbox.until_outcome("evt_1", "orders").await;
    assert_eq!(result, "succeeded");
    let attempt: i32 = inbox.db.one("SELECT attempt FROM app.updates").await;
    assert_eq!(attempt, timeline.outcomes[0].attempts);
    assert_eq!(
        usize::try_from(attempt).unwrap(),
        timeline.attempts.len() + 1
    );
    inbox.db.verify().await;
}

#[tokio::test]
async fn f50_an_object_that_is_never_made_ends_as_dead_letter_with_its_own_reason() {
    let mut spec = orders();
    spec.policy.not_yet = RetryPolicy {
        span: Duration::ZERO,
        first: Duration::from_millis(1),
        max: Duration::from_millis(1),
    };
    let inbox = Inbox::start(ORDERS, vec![spec]).await;
    inbox.put(&update("evt_1")).await;
    let (result, timeline) = inbox.until_outcome("evt_1", "orders").await;
    assert_eq!(result, "dead");
    let reason = timeline.outcomes[0].reason.clone().unwrap();
    assert_eq!(reason, "its time never came: the order is not there");
    assert_eq!(timeline.outcomes[0].attempts, 12);
    assert_eq!(
        inbox
            .db
            .one::<i64>("SELECT count(*) FROM app.updates")
            .await,
        0
    );
    inbox.db.verify().await;
}

/// A delay is drawn between nothing and this: no test lasts until it is over.
const MONTHS: Duration = Duration::from_hours(2_400);

/// The same with the events' objects as lanes; it comes again within months.
fn patient() -> HandlerSpec {
    let mut spec = HandlerSpec {
        lane: Some(LaneBy::Entity),
        ..orders()
    };
    spec.policy.not_yet = RetryPolicy {
        span: Duration::from_hours(24_000),
        first: MONTHS,
        max: MONTHS,
    };
    spec
}

fn created(id: &str) -> serde_json::Value {
    event(id, "order.created", json!({"id": "or_1"}))
}

/// Keys of this state, in the order of their lane.
async fn waiting(inbox: &Inbox, state: &str) -> Vec<String> {
    inbox
        .db
        .all(&format!(
            "SELECT e.key FROM oncehook.delivery d JOIN oncehook.event e ON e.id = d.event_id WHERE d.state = '{state}' ORDER BY d.lane_seq"
        ))
        .await
}

async fn until_postponed(inbox: &Inbox, key: &str) {
    until("it has come too early", async || {
        !inbox.timeline(key).await.attempts.is_empty()
    })
    .await;
}

/// What waits is due now.
async fn due(inbox: &Inbox) {
    inbox
        .db
        .execute("UPDATE oncehook.delivery SET run_at = now()")
        .await;
}

#[tokio::test]
async fn f50_in_a_lane_it_gives_way_to_what_it_waits_for() {
    let inbox = Inbox::start(ORDERS, vec![patient()]).await;
    inbox.put(&update("evt_1")).await;
    until_postponed(&inbox, "evt_1").await;
    // It is the first of its lane, and not due for long.
    assert_eq!(waiting(&inbox, "ready").await, ["evt_1"]);
    inbox.put(&created("evt_2")).await;
    let (result, _) = inbox.until_outcome("evt_2", "orders").await;
    assert_eq!(result, "succeeded");
    assert_eq!(waiting(&inbox, "ready").await, ["evt_1"]);
    due(&inbox).await;
    let (result, _) = inbox.until_outcome("evt_1", "orders").await;
    assert_eq!(result, "succeeded");
    inbox.db.verify().await;
}

#[tokio::test]
async fn f50_of_many_that_wait_in_a_lane_none_stands_before_what_can_run() {
    let inbox = Inbox::start(ORDERS, vec![patient()]).await;
    for key in ["evt_1", "evt_2", "evt_3"] {
        inbox.put(&update(key)).await;
        until_postponed(&inbox, key).await;
    }
    let soonest = "SELECT state FROM oncehook.delivery ORDER BY run_at LIMIT 1";
    assert_eq!(inbox.db.one::<String>(soonest).await, "ready");
    inbox.put(&created("evt_4")).await;
    let (result, _) = inbox.until_outcome("evt_4", "orders").await;
    assert_eq!(result, "succeeded");
    due(&inbox).await;
    for key in ["evt_1", "evt_2", "evt_3"] {
        let (result, _) = inbox.until_outcome(key, "orders").await;
        assert_eq!(result, "succeeded", "{key}");
    }
    inbox.db.verify().await;
}

#[tokio::test]
async fn one_that_came_behind_it_and_that_no_node_looked_at_is_found() {
    let inbox = Inbox::start(ORDERS, vec![patient()]).await;
    inbox.put(&update("evt_1")).await;
    until_postponed(&inbox, "evt_1").await;
    let other = json!({"id": "or_2"});
    inbox.put(&event("evt_2", "order.updated", other)).await;
    until_postponed(&inbox, "evt_2").await;
    // As if it had just come, and its node had died.
    inbox
        .db
        .execute(
            "UPDATE oncehook.delivery SET lane = 'or_1', state = 'blocked', postponed = false, run_at = now() WHERE lane = 'or_2'",
        )
        .await;
    until("it was run", async || {
        inbox.timeline("evt_2").await.attempts.len() == 2
    })
    .await;
    inbox.db.verify().await;
}

#[tokio::test]
async fn one_whose_time_has_come_keeps_its_place_while_it_fails() {
    let mut spec = patient();
    spec.policy.retry = spec.policy.not_yet;
    let inbox = Inbox::start(ORDERS, vec![spec]).await;
    inbox.put(&update("evt_1")).await;
    until_postponed(&inbox, "evt_1").await;
    // Now it is its own failure that it waits for.
    inbox
        .db
        .execute("ALTER TABLE app.updates ADD CONSTRAINT no_second CHECK (attempt < 2)")
        .await;
    due(&inbox).await;
    until("it has failed", async || {
        inbox.timeline("evt_1").await.deliveries[0].failures == 1
    })
    .await;
    inbox.put(&update("evt_2")).await;
    inbox
        .put(&event("evt_3", "order.updated", json!({"id": "or_0"})))
        .await;
    // A look that came later than that of the second one.
    until_postponed(&inbox, "evt_3").await;
    assert!(inbox.timeline("evt_2").await.attempts.is_empty());
    assert_eq!(waiting(&inbox, "blocked").await, ["evt_2"]);
    inbox.db.verify().await;
}
