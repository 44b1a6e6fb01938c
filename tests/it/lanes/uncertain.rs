//! A head whose call has an unknown result.

use oncehook::dispatch::{HandlerKind, HttpProbe, HttpTarget, HttpUnknown};
use oncehook::domain::{LaneBy, OnDead, OnUncertain, SecretText};
use oncehook::store::{Resolution, ResolveRequest};
use oncehook::{HandlerSpec, ProbeSchedule};
use std::time::Duration;

use crate::support::inbox::{Inbox, every, quick};
use crate::support::{Receiver, Reply, until};

use super::{about, key, state};

/// Handler `calls`, whose lanes are the events' objects.
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
        ..quick(HandlerSpec::new(
            "calls",
            every(),
            HandlerKind::Http(target),
        ))
    }
}

async fn until_state(inbox: &Inbox, n: usize, wanted: &str) {
    until(&format!("event {n} is {wanted}"), async || {
        state(&inbox.db, &key("ch_a", n)).await.as_deref() == Some(wanted)
    })
    .await;
}

fn decision(n: usize, resolution: Resolution) -> ResolveRequest {
    ResolveRequest {
        source: "stripe".into(),
        key: key("ch_a", n),
        handler: "calls".into(),
        resolution,
        reason: "their support says so".into(),
        evidence: None,
        actor: "test".into(),
    }
}

#[tokio::test]
async fn a_lane_waits_for_the_result_of_its_heads_call() {
    let receiver = Receiver::start().await;
    receiver.reply(Reply::cut());
    let inbox = Inbox::start("", vec![calls(&receiver, HttpUnknown::Hold)]).await;
    for n in 0..3 {
        inbox.put(&about("ch_a", n)).await;
    }
    until_state(&inbox, 0, "uncertain").await;
    // Another lane's event has come and gone since.
    inbox.put(&about("ch_b", 0)).await;
    inbox.until_outcome(&key("ch_b", 0), "calls").await;
    for n in 1..3 {
        let waits = state(&inbox.db, &key("ch_a", n)).await;
        assert_eq!(waits.as_deref(), Some("blocked"), "event {n}");
    }
    let decided = decision(0, Resolution::Succeeded);
    inbox.engine.store().resolve(&decided).await.unwrap();
    inbox.until_outcome(&key("ch_a", 2), "calls").await;
    assert_eq!(receiver.requests().len(), 4);
    inbox.db.verify().await;
}

#[tokio::test]
async fn a_lane_that_skips_goes_on_while_the_result_is_not_known() {
    let receiver = Receiver::start().await;
    receiver.reply(Reply::cut());
    let mut spec = calls(&receiver, HttpUnknown::Hold);
    spec.policy.on_uncertain = OnUncertain::Skip;
    let inbox = Inbox::start("", vec![spec]).await;
    for n in 0..3 {
        inbox.put(&about("ch_a", n)).await;
    }
    inbox.until_outcome(&key("ch_a", 2), "calls").await;
    let open = inbox.timeline(&key("ch_a", 0)).await.deliveries.remove(0);
    assert_eq!((open.state.as_str(), open.lane), ("uncertain", None));
    assert_eq!(receiver.requests().len(), 3);
    inbox.db.verify().await;
}

#[tokio::test]
async fn what_a_probe_shows_to_be_given_up_is_held_in_a_strict_lane() {
    let receiver = Receiver::start().await;
    receiver.reply(Reply::cut());
    receiver.always(Reply::status(200).body(r#"{"state":"absent"}"#));
    let probe = HttpProbe {
        url: receiver.url("/by-key/{effect_key}"),
        post: false,
        not_found_is_absent: false,
    };
    let mut spec = calls(&receiver, HttpUnknown::Probe(probe));
    spec.policy.on_dead = OnDead::Hold;
    spec.probes = ProbeSchedule::new(vec![Duration::from_hours(1)]).unwrap();
    let inbox = Inbox::start("", vec![spec]).await;
    for n in 0..2 {
        inbox.put(&about("ch_a", n)).await;
    }
    until_state(&inbox, 0, "uncertain").await;
    // As if its tries and its time were spent, and the call had landed.
    inbox
        .db
        .execute(
            "UPDATE oncehook.delivery SET failures = 30, first_try_at = now() - interval '9 days', run_at = now(),
                    in_flight_until = now() - interval '1 ms' WHERE state = 'uncertain'",
        )
        .await;
    until_state(&inbox, 0, "held").await;
    until_state(&inbox, 1, "blocked").await;
    let decided = decision(0, Resolution::Dead);
    inbox.engine.store().resolve(&decided).await.unwrap();
    inbox.until_outcome(&key("ch_a", 1), "calls").await;
}
