//! `apply_if_newer`: what is older than what was applied is skipped.

use std::sync::Arc;
use std::time::Duration;

use oncehook::dispatch::{HandlerKind, HttpProbe, HttpTarget, HttpUnknown};
use oncehook::domain::{LaneBy, SecretText, VersionBy};
use oncehook::{HandlerSpec, ProbeSchedule};
use serde_json::{Value, json};

use crate::support::inbox::{Inbox, dispatch, event, every, quick, sql, stripe_source};
use crate::support::{Gate, Receiver, Reply, TestDb, until};

/// Keeps the state that came last, whatever it is: only the order of handling decides.
const STATES: &str = "
CREATE SCHEMA app;
CREATE TABLE app.states (id text PRIMARY KEY, state text NOT NULL, writes int NOT NULL DEFAULT 1);
CREATE FUNCTION app.set_state(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  now text := oncehook.body_json(event) #>> '{data,object,state}';
BEGIN
  INSERT INTO app.states VALUES (event.entity, now)
  ON CONFLICT (id) DO UPDATE SET state = EXCLUDED.state, writes = states.writes + 1;
  IF now = 'broken' THEN RAISE EXCEPTION 'no such state' USING ERRCODE = 'OH001'; END IF;
END $$;
";

/// An event about an object, which happened at this second.
fn happened(id: &str, object: &str, state: &str, at_s: i64) -> Value {
    let mut event = event(
        id,
        "sub.updated",
        json!({"id": object, "state": state, "version": at_s}),
    );
    event["created"] = (1_760_000_000 + at_s).into();
    event
}

fn states(by: &str) -> HandlerSpec {
    HandlerSpec {
        apply_if_newer: Some(VersionBy::parse(by).unwrap()),
        ..sql("states", "app.set_state")
    }
}

#[tokio::test]
async fn f51_whatever_the_order_the_newest_state_stays() {
    for by in ["occurred_at", "json:/data/object/version"] {
        let inbox = Inbox::start(STATES, vec![states(by)]).await;
        let second = Inbox::on(
            Arc::clone(&inbox.db),
            vec![stripe_source()],
            vec![states(by)],
            Some(dispatch()),
        )
        .await;
        // Forty objects, created and updated, at once and in every order.
        let send = |node: Arc<Inbox>, events: Vec<Value>| {
            tokio::spawn(async move {
                for event in events {
                    node.put(&event).await;
                }
            })
        };
        let (inbox, second) = (Arc::new(inbox), Arc::new(second));
        let created = |n: usize| happened(&format!("evt_c{n}"), &format!("sub_{n}"), "created", 1);
        let updated = |n: usize| happened(&format!("evt_u{n}"), &format!("sub_{n}"), "updated", 2);
        let mut sent = Vec::new();
        for n in 0..40 {
            match n % 3 {
                0 => sent.push(send(Arc::clone(&inbox), vec![created(n), updated(n)])),
                1 => sent.push(send(Arc::clone(&inbox), vec![updated(n), created(n)])),
                _ => {
                    sent.push(send(Arc::clone(&inbox), vec![created(n)]));
                    sent.push(send(Arc::clone(&second), vec![updated(n)]));
                }
            }
        }
        for sent in sent {
            sent.await.unwrap();
        }
        until("nothing is left to do", async || {
            inbox.db.count("delivery").await == 0
        })
        .await;
        let states: Vec<String> = inbox.db.all("SELECT DISTINCT state FROM app.states").await;
        assert_eq!(states, ["updated"], "{by}");
        // Each event has ended, and what was not written was skipped for its age.
        let skipped: i64 = inbox
            .db
            .one("SELECT count(*) FROM oncehook.outcome WHERE result = 'skipped' AND reason LIKE 'stale: %'")
            .await;
        let writes: i64 = inbox.db.one("SELECT sum(writes) FROM app.states").await;
        assert_eq!(skipped + writes, 80, "{by}");
        let odd: i64 = inbox
            .db
            .one("SELECT count(*) FROM oncehook.outcome WHERE result NOT IN ('succeeded', 'skipped')")
            .await;
        assert_eq!(odd, 0);
        inbox.db.verify().await;
    }
}

#[tokio::test]
async fn a_version_from_a_body_is_masked_as_other_text_is() {
    let inbox = Inbox::start(STATES, vec![states("json:/data/object/version")]).await;
    for (key, version, result, why) in [
        ("evt_1", 2, "succeeded", None),
        (
            "evt_2",
            1,
            "skipped",
            Some("stale: version 1 is older than 2, "),
        ),
        ("evt_3", 4_111_111_111_111_112, "succeeded", None),
        (
            "evt_4",
            4_111_111_111_111_111,
            "skipped",
            Some("stale: version [digits] is older than [digits], "),
        ),
    ] {
        inbox.put(&happened(key, "sub_1", "active", version)).await;
        let (ended, timeline) = inbox.until_outcome(key, "states").await;
        assert_eq!(ended, result, "{key}");
        let reason = timeline.outcomes[0].reason.clone().unwrap_or_default();
        assert!(reason.starts_with(why.unwrap_or_default()), "{reason}");
    }
}

#[tokio::test]
async fn f51_an_older_event_is_skipped_visibly_and_one_of_the_same_second_is_not() {
    let inbox = Inbox::start(STATES, vec![states("occurred_at")]).await;
    inbox.put(&happened("evt_2", "sub_1", "active", 2)).await;
    inbox.until_outcome("evt_2", "states").await;
    inbox.put(&happened("evt_1", "sub_1", "trial", 1)).await;
    let (result, timeline) = inbox.until_outcome("evt_1", "states").await;
    assert_eq!(result, "skipped");
    let reason = timeline.outcomes[0].reason.clone().unwrap();
    assert!(
        reason
            .starts_with("stale: version 2025-10-09T08:53:21Z is older than 2025-10-09T08:53:22Z,"),
        "{reason}"
    );
    inbox.put(&happened("evt_3", "sub_1", "paused", 2)).await;
    let (result, _) = inbox.until_outcome("evt_3", "states").await;
    assert_eq!(result, "succeeded");
    // About another object, and about none: nothing to compare with.
    inbox.put(&happened("evt_4", "sub_2", "trial", 1)).await;
    assert_eq!(inbox.until_outcome("evt_4", "states").await.0, "succeeded");
    let state: String = inbox
        .db
        .one("SELECT state FROM app.states WHERE id = 'sub_1'")
        .await;
    assert_eq!(state, "paused");
}

#[tokio::test]
async fn what_failed_was_not_applied() {
    let inbox = Inbox::start(STATES, vec![states("occurred_at")]).await;
    inbox.put(&happened("evt_2", "sub_1", "broken", 2)).await;
    assert_eq!(inbox.until_outcome("evt_2", "states").await.0, "dead");
    inbox.put(&happened("evt_1", "sub_1", "trial", 1)).await;
    assert_eq!(inbox.until_outcome("evt_1", "states").await.0, "succeeded");
    let state: String = inbox.db.one("SELECT state FROM app.states").await;
    assert_eq!(state, "trial");
}

#[tokio::test]
async fn versions_that_are_read_from_elsewhere_are_not_compared() {
    let inbox = Inbox::start(STATES, vec![states("occurred_at")]).await;
    inbox.put(&happened("evt_2", "sub_1", "active", 2)).await;
    inbox.until_outcome("evt_2", "states").await;
    inbox
        .engine
        .reload(
            vec![stripe_source()],
            vec![states("json:/data/object/version")],
        )
        .await
        .unwrap();
    inbox.put(&happened("evt_3", "sub_1", "paused", 3)).await;
    assert_eq!(inbox.until_outcome("evt_3", "states").await.0, "succeeded");
    inbox.put(&happened("evt_1", "sub_1", "trial", 1)).await;
    assert_eq!(inbox.until_outcome("evt_1", "states").await.0, "skipped");
}

/// Handler `calls`, which calls what is not older.
fn calls(receiver: &Receiver, on_unknown: HttpUnknown) -> HandlerSpec {
    let target = HttpTarget {
        url: receiver.url("/hooks"),
        secrets: vec![(
            "a".into(),
            SecretText::new("whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="),
        )],
        on_unknown,
    };
    HandlerSpec {
        lane: Some(LaneBy::Entity),
        apply_if_newer: Some(VersionBy::OccurredAt),
        ..quick(HandlerSpec::new(
            "calls",
            every(),
            HandlerKind::Http(target),
        ))
    }
}

#[tokio::test]
async fn an_older_event_is_not_called_out() {
    let receiver = Receiver::start().await;
    let inbox = Inbox::start("", vec![calls(&receiver, HttpUnknown::Retry)]).await;
    let gate = Gate::closed();
    receiver.reply(Reply::status(200).behind(&gate));
    inbox.put(&happened("evt_2", "sub_1", "active", 2)).await;
    receiver.until_requests(1).await;
    // It comes while the newer one is on its way.
    inbox.put(&happened("evt_1", "sub_1", "trial", 1)).await;
    gate.open();
    assert_eq!(inbox.until_outcome("evt_2", "calls").await.0, "succeeded");
    assert_eq!(inbox.until_outcome("evt_1", "calls").await.0, "skipped");
    inbox.put(&happened("evt_3", "sub_1", "paused", 3)).await;
    assert_eq!(inbox.until_outcome("evt_3", "calls").await.0, "succeeded");
    let called: Vec<String> = receiver
        .requests()
        .iter()
        .map(|request| request.header("oncehook-event-key").unwrap().to_owned())
        .collect();
    assert_eq!(called, ["evt_2", "evt_3"]);
}

#[tokio::test]
async fn what_a_probe_says_was_applied_makes_older_events_stale() {
    let receiver = Receiver::start().await;
    receiver.reply(Reply::cut());
    receiver.always(Reply::status(200).body(r#"{"state":"applied"}"#));
    let probe = HttpProbe {
        url: receiver.url("/by-key/{effect_key}"),
        post: false,
        not_found_is_absent: false,
    };
    let probes = ProbeSchedule::new(vec![Duration::from_millis(50)]).unwrap();
    let handler = HandlerSpec {
        probes,
        ..calls(&receiver, HttpUnknown::Probe(probe))
    };
    let inbox = Inbox::start("", vec![handler]).await;
    inbox.put(&happened("evt_2", "sub_1", "active", 2)).await;
    inbox.put(&happened("evt_1", "sub_1", "trial", 1)).await;
    let (result, timeline) = inbox.until_outcome("evt_2", "calls").await;
    assert_eq!(
        (result.as_str(), timeline.outcomes[0].decided_by.as_str()),
        ("succeeded", "probe")
    );
    assert_eq!(inbox.until_outcome("evt_1", "calls").await.0, "skipped");
    inbox.db.verify().await;
}

/// What was stored before the handler had its lane stands in none: nothing but a look keeps an older and a newer event
/// of one object from being on their way at once.
#[tokio::test]
async fn what_was_stored_without_a_lane_is_not_called_beside_another_of_its_object() {
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.reply(Reply::status(200).behind(&gate));
    let of_before = HandlerSpec {
        lane: None,
        apply_if_newer: None,
        ..calls(&receiver, HttpUnknown::Retry)
    };
    let db = Arc::new(TestDb::new().await);
    let storing = Inbox::on(
        Arc::clone(&db),
        vec![stripe_source()],
        vec![of_before],
        None,
    )
    .await;
    storing.put(&happened("evt_2", "sub_1", "active", 2)).await;
    storing.put(&happened("evt_1", "sub_1", "trial", 1)).await;
    assert_eq!(db.count("delivery WHERE lane IS NULL").await, 2);
    // The newer one comes first.
    let older = async |run_at: &str| {
        db.execute(&format!(
            "UPDATE oncehook.delivery d SET run_at = {run_at} FROM oncehook.event e WHERE e.id = d.event_id AND e.key = 'evt_1'"
        ))
        .await;
    };
    older("'infinity'").await;
    let now = vec![calls(&receiver, HttpUnknown::Retry)];
    let inbox = Inbox::on(
        Arc::clone(&db),
        vec![stripe_source()],
        now,
        Some(dispatch()),
    )
    .await;
    receiver.until_requests(1).await;
    older("now()").await;
    // And one that has a lane.
    inbox.put(&happened("evt_0", "sub_1", "new", 0)).await;
    // Not of this object: called.
    inbox.put(&happened("evt_other", "sub_2", "new", 0)).await;
    assert_eq!(
        inbox.until_outcome("evt_other", "calls").await.0,
        "succeeded"
    );
    until("both were claimed and put off, or called", async || {
        let put_off = "delivery WHERE state = 'ready' AND first_try_at IS NOT NULL";
        db.count(put_off).await == 2 || receiver.requests().len() > 2
    })
    .await;
    assert_eq!(receiver.requests().len(), 2, "beside the newer one");
    gate.open();
    assert_eq!(inbox.until_outcome("evt_2", "calls").await.0, "succeeded");
    for key in ["evt_1", "evt_0"] {
        assert_eq!(inbox.until_outcome(key, "calls").await.0, "skipped");
    }
    inbox.db.verify().await;
}

/// So is one whose result is not known: it may turn out to be applied.
#[tokio::test]
async fn an_uncertain_call_without_a_lane_keeps_the_others_of_its_object_waiting() {
    let receiver = Receiver::start().await;
    receiver.reply(Reply::cut());
    let of_before = HandlerSpec {
        lane: None,
        apply_if_newer: None,
        ..calls(&receiver, HttpUnknown::Hold)
    };
    let inbox = Inbox::start("", vec![of_before]).await;
    inbox.put(&happened("evt_2", "sub_1", "active", 2)).await;
    until("its result is not known", async || {
        inbox.db.count("delivery WHERE state = 'uncertain'").await == 1
    })
    .await;
    inbox
        .engine
        .reload(
            vec![stripe_source()],
            vec![calls(&receiver, HttpUnknown::Hold)],
        )
        .await
        .unwrap();
    inbox.put(&happened("evt_1", "sub_1", "trial", 1)).await;
    until("it was claimed and put off, or called", async || {
        let put_off = "delivery WHERE state = 'ready' AND first_try_at IS NOT NULL";
        inbox.db.count(put_off).await == 1 || receiver.requests().len() > 1
    })
    .await;
    assert_eq!(receiver.requests().len(), 1, "beside one that is not known");
}
