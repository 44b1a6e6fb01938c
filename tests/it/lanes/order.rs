//! Order within a lane, and nothing but that.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncehook::HandlerSpec;
use oncehook::dispatch::{HandlerKind, HttpTarget, HttpUnknown};
use oncehook::domain::{LaneBy, SecretText};
use oncehook::store::ReplayRequest;
use serde_json::{Value, json};

use crate::crash::{POLL, QUICK, until_metric};
use crate::support::inbox::{Inbox, dispatch, event, every, quick, stripe_source};
use crate::support::{Receiver, Reply, TestApp, until};

use super::{LINES, about, key, lines, state, written};

const OBJECTS: [&str; 4] = ["ch_a", "ch_b", "ch_c", "ch_d"];

#[tokio::test]
async fn two_nodes_do_each_lane_in_the_order_in_which_it_came() {
    let inbox = Inbox::start(LINES, vec![lines()]).await;
    let second = Inbox::on(
        Arc::clone(&inbox.db),
        vec![stripe_source()],
        vec![lines()],
        Some(dispatch()),
    )
    .await;
    let send = async |object: &str, nodes: [&Inbox; 2]| {
        for n in 0..25 {
            nodes[n % 2].put(&about(object, n)).await;
        }
    };
    let both = [&inbox, &second];
    tokio::join!(
        send(OBJECTS[0], both),
        send(OBJECTS[1], both),
        send(OBJECTS[2], both),
        send(OBJECTS[3], both),
    );
    until("nothing is left to do", async || {
        inbox.db.count("delivery").await == 0
    })
    .await;
    let in_order: Vec<i32> = (0..25).collect();
    for (object, written) in written(&inbox.db).await {
        assert_eq!(written, in_order, "{object}");
    }
    // What would have shown in a node's own counters: no lane was found without a head.
    inbox.db.verify().await;
}

/// Answers after 20 ms and keeps the most calls at once: per object, and of all.
async fn counting() -> (Receiver, Arc<Mutex<(HashMap<String, usize>, usize)>>) {
    let most = Arc::new(Mutex::new((HashMap::new(), 0)));
    let now: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let known = Arc::clone(&most);
    let receiver = Receiver::answering(SocketAddr::from(([127, 0, 0, 1], 0)), move |received| {
        let (now, known) = (Arc::clone(&now), Arc::clone(&known));
        Box::pin(async move {
            let body: Value = serde_json::from_slice(&received.body).unwrap();
            let object = body["data"]["object"]["id"].as_str().unwrap().to_owned();
            let count = |change: fn(&mut usize)| {
                let mut now = now.lock().unwrap();
                change(now.entry(object.clone()).or_default());
                (now[&object], now.values().sum::<usize>())
            };
            let (of_object, of_all) = count(|n| *n += 1);
            {
                let mut most = known.lock().unwrap();
                let of: &mut usize = most.0.entry(object.clone()).or_default();
                *of = (*of).max(of_object);
                most.1 = most.1.max(of_all);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            count(|n| *n -= 1);
            Reply::status(200)
        })
    })
    .await;
    (receiver, most)
}

#[tokio::test]
async fn calls_of_one_lane_go_out_one_by_one_and_those_of_others_beside_them() {
    let (receiver, most) = counting().await;
    let target = HttpTarget {
        url: receiver.url("/hooks"),
        secrets: vec![(
            "a".into(),
            SecretText::new("whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="),
        )],
        on_unknown: HttpUnknown::Retry,
    };
    let handler = HandlerSpec {
        lane: Some(LaneBy::Entity),
        ..quick(HandlerSpec::new(
            "calls",
            every(),
            HandlerKind::Http(target),
        ))
    };
    let inbox = Inbox::start("", vec![handler]).await;
    for n in 0..8 {
        for object in OBJECTS {
            inbox.put(&about(object, n)).await;
        }
    }
    until("nothing is left to do", async || {
        inbox.db.count("delivery").await == 0
    })
    .await;
    let (per_object, of_all) = most.lock().unwrap().clone();
    assert_eq!(per_object.len(), OBJECTS.len());
    assert!(per_object.values().all(|n| *n == 1), "{per_object:?}");
    assert!(of_all > 1, "no two lanes were at work at once");
    assert_eq!(inbox.db.count("outcome").await, 32);
}

#[tokio::test]
async fn a_head_that_has_to_wait_stops_its_own_lane_only() {
    let inbox = Inbox::start(
        "CREATE SCHEMA app; CREATE TABLE app.open (yes bool);
         CREATE FUNCTION app.wait(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
         BEGIN
           IF event.key = 'evt_ch_a_0' AND NOT EXISTS (SELECT FROM app.open) THEN RAISE EXCEPTION 'busy'; END IF;
         END $$",
        vec![HandlerSpec {
            lane: Some(LaneBy::Entity),
            ..crate::support::inbox::sql("wait", "app.wait")
        }],
    )
    .await;
    inbox.put(&about("ch_a", 0)).await;
    until("its first try has failed", async || {
        !inbox.timeline("evt_ch_a_0").await.attempts.is_empty()
    })
    .await;
    for n in 1..4 {
        inbox.put(&about("ch_a", n)).await;
        inbox.put(&about("ch_b", n)).await;
        let (result, _) = inbox.until_outcome(&key("ch_b", n), "wait").await;
        assert_eq!(result, "succeeded");
    }
    for n in 1..4 {
        let timeline = inbox.timeline(&key("ch_a", n)).await;
        assert_eq!(timeline.event.state, "pending");
        let delivery = &timeline.deliveries[0];
        assert_eq!(
            (delivery.state.as_str(), delivery.lane.as_deref()),
            ("blocked", Some("ch_a"))
        );
    }
    inbox.db.execute("INSERT INTO app.open VALUES (true)").await;
    for n in 0..4 {
        inbox.until_outcome(&key("ch_a", n), "wait").await;
    }
    let order: Vec<String> = inbox
        .db
        .all("SELECT e.key FROM oncehook.outcome o JOIN oncehook.event e ON e.id = o.event_id WHERE e.entity = 'ch_a' ORDER BY finished_at")
        .await;
    assert_eq!(order, (0..4).map(|n| key("ch_a", n)).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_event_waits_where_its_json_says_and_for_none_where_it_says_nothing() {
    let handler = HandlerSpec {
        lane: Some(LaneBy::parse("json:/data/object/customer").unwrap()),
        ..crate::support::inbox::sql("wait", "app.fail")
    };
    let inbox = Inbox::start(
        "CREATE SCHEMA app;
         CREATE FUNCTION app.fail(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'busy'; END $$",
        vec![handler],
    )
    .await;
    let long = "x".repeat(5_000);
    for (n, customer) in [
        json!("cus_1"),
        json!(17),
        json!(null),
        json!(long),
        json!({"id": 1}),
    ]
    .into_iter()
    .enumerate()
    {
        for copy in ["a", "b"] {
            let id = format!("evt_{n}{copy}");
            inbox
                .put(&event(&id, "charge.updated", json!({"customer": customer})))
                .await;
        }
    }
    let lane = async |key: &str| inbox.timeline(key).await.deliveries[0].lane.clone();
    assert_eq!(lane("evt_0a").await.as_deref(), Some("cus_1"));
    assert_eq!(lane("evt_1a").await.as_deref(), Some("17"));
    assert_eq!(lane("evt_2a").await, None);
    let named = lane("evt_3a").await.unwrap();
    assert!(named.starts_with("sha256:") && named.len() < 200, "{named}");
    assert_eq!(lane("evt_4a").await, None);
    for (n, waits) in [(0, true), (1, true), (2, false), (3, true), (4, false)] {
        let state = state(&inbox.db, &format!("evt_{n}b")).await.unwrap();
        assert_eq!(state == "blocked", waits, "evt_{n}b is {state}");
    }
}

#[tokio::test]
async fn no_acknowledgement_waits_for_a_lane_that_others_hold() {
    let inbox = Inbox::on(
        Arc::new({
            let db = crate::support::TestDb::new().await;
            db.execute(LINES).await;
            db
        }),
        vec![stripe_source()],
        vec![lines()],
        None,
    )
    .await;
    inbox.put(&about("ch_a", 1)).await;
    inbox.put(&about("ch_a", 2)).await;
    until("the lane has its head", async || {
        state(&inbox.db, &key("ch_a", 1)).await.as_deref() == Some("ready")
    })
    .await;
    let holder = inbox.db.client().await;
    holder
        .batch_execute("BEGIN; SELECT FROM oncehook.delivery FOR UPDATE; DELETE FROM oncehook.delivery WHERE state = 'ready'")
        .await
        .unwrap();
    for n in 4..24 {
        // A sender gives up after some seconds; a look that waited would take them.
        tokio::time::timeout(Duration::from_secs(5), inbox.put(&about("ch_a", n)))
            .await
            .unwrap();
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(inbox.db.count("delivery").await, 22);
}

#[tokio::test]
async fn a_replayed_event_goes_behind_those_that_wait() {
    let inbox = Inbox::start(LINES, vec![lines()]).await;
    inbox
        .db
        .execute("INSERT INTO app.broken VALUES ('evt_ch_a_1')")
        .await;
    inbox.put(&about("ch_a", 1)).await;
    let (result, _) = inbox.until_outcome("evt_ch_a_1", "lines").await;
    assert_eq!(result, "dead");
    // A head that is not due for long, and one behind it.
    inbox.put(&about("ch_a", 3)).await;
    until("the next one is tried", async || {
        state(&inbox.db, "evt_ch_a_3").await.is_none()
    })
    .await;
    let holder = inbox.db.client().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE app.line IN EXCLUSIVE MODE; TRUNCATE app.broken")
        .await
        .unwrap();
    inbox.put(&about("ch_a", 4)).await;
    inbox.put(&about("ch_a", 5)).await;
    let replayed = inbox
        .engine
        .store()
        .replay(&ReplayRequest {
            source: "stripe".into(),
            key: "evt_ch_a_1".into(),
            handler: "lines".into(),
            force: false,
            expected_run: None,
            reason: "account made".into(),
            actor: "test".into(),
        })
        .await
        .unwrap();
    assert_eq!(replayed.run, 2);
    assert_eq!(
        state(&inbox.db, "evt_ch_a_1").await.as_deref(),
        Some("blocked")
    );
    holder.batch_execute("COMMIT").await.unwrap();
    let (result, _) = inbox.until_run("evt_ch_a_1", "lines", 2).await;
    assert_eq!(result, "succeeded");
    assert_eq!(written(&inbox.db).await["ch_a"], [3, 4, 5, 1]);
}

#[tokio::test]
async fn events_of_before_a_handler_was_added_get_their_lanes_too() {
    let db = Arc::new(crate::support::TestDb::new().await);
    db.execute(LINES).await;
    let before = Inbox::on(Arc::clone(&db), vec![stripe_source()], vec![], None).await;
    for n in 0..6 {
        before.put(&about("ch_a", n)).await;
    }
    let by_member = HandlerSpec {
        lane: Some(LaneBy::parse("json:/data/object/id").unwrap()),
        ..lines()
    };
    let inbox = Inbox::on(db, vec![stripe_source()], vec![by_member], Some(dispatch())).await;
    let since = jiff::Timestamp::now() - jiff::Span::new().hours(1);
    let made = inbox
        .engine
        .store()
        .replay_missing("lines", &every(), since, false, "added", "test")
        .await
        .unwrap();
    assert_eq!(made.len(), 6);
    until("nothing is left to do", async || {
        inbox.db.count("delivery").await == 0
    })
    .await;
    assert_eq!(written(&inbox.db).await["ch_a"], [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_node_in_good_health_has_no_lane_to_mend() {
    let app = TestApp::builder()
        .stripe("stripe")
        .setup(LINES)
        .toml(POLL)
        .sql_handler("lines", "app.write", &format!("lane = \"entity\"\n{QUICK}"))
        .start()
        .await;
    for n in 0..40 {
        for object in OBJECTS {
            assert_eq!(
                app.post_stripe("stripe", &about(object, n)).await.status(),
                200
            );
        }
    }
    until("nothing is left to do", async || {
        app.db.count("delivery").await == 0
    })
    .await;
    let written = written(&app.db).await;
    assert!(
        written.values().all(|w| *w == (0..40).collect::<Vec<_>>()),
        "{written:?}"
    );
    // Counted only once there is something to count.
    let metrics = reqwest::get(format!("http://{}/metrics", app.api))
        .await
        .unwrap();
    let text = metrics.text().await.unwrap();
    assert!(!text.contains("\noncehook_lanes_mended_total "), "{text}");
    until_metric(&app, "oncehook_deliveries_held", |n| n <= 0.0).await;
}
