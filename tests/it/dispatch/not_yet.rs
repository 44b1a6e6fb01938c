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
    spec.policy.not_yet.span = Duration::ZERO;
    spec.policy.not_yet.max = Duration::from_millis(1);
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

#[tokio::test]
async fn f50_in_a_lane_it_gives_way_to_what_it_waits_for() {
    let inbox = Inbox::start(
        ORDERS,
        vec![HandlerSpec {
            lane: Some(LaneBy::Entity),
            ..orders()
        }],
    )
    .await;
    inbox.put(&update("evt_1")).await;
    until("it has come too early", async || {
        !inbox.timeline("evt_1").await.attempts.is_empty()
    })
    .await;
    inbox
        .put(&event("evt_2", "order.created", json!({"id": "or_1"})))
        .await;
    for key in ["evt_2", "evt_1"] {
        let (result, _) = inbox.until_outcome(key, "orders").await;
        assert_eq!(result, "succeeded", "{key}");
    }
    let order: Vec<String> = inbox
        .db
        .all("SELECT e.key FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id ORDER BY finished_at")
        .await;
    assert_eq!(order, ["evt_2", "evt_1"]);
    inbox.db.verify().await;
}
