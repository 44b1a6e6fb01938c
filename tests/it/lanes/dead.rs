//! A head that cannot succeed.

use std::sync::Arc;

use oncehook::HandlerSpec;
use oncehook::domain::{LaneBy, OnDead};
use oncehook::store::{ReplayRequest, Resolution, ResolveRequest, StoreError};

use crate::crash::QUICK;
use crate::support::inbox::{Inbox, stripe_source};
use crate::support::{TestApp, TestDb, until};

use super::{LINES, about, key, lines, state, written};

#[tokio::test]
async fn a_dead_head_gives_way_to_the_next() {
    let inbox = Inbox::start(LINES, vec![lines()]).await;
    inbox
        .db
        .execute("INSERT INTO app.broken VALUES ('evt_ch_a_2')")
        .await;
    for n in 1..6 {
        inbox.put(&about("ch_a", n)).await;
    }
    let (result, _) = inbox.until_outcome("evt_ch_a_2", "lines").await;
    assert_eq!(result, "dead");
    inbox.until_outcome("evt_ch_a_5", "lines").await;
    assert_eq!(written(&inbox.db).await["ch_a"], [1, 3, 4, 5]);
    inbox.db.verify().await;
}

/// Handler `lines` whose lanes wait for a person where a head is dead.
fn strict() -> HandlerSpec {
    let mut spec = lines();
    spec.policy.on_dead = OnDead::Hold;
    spec
}

#[tokio::test]
async fn a_strict_lane_waits_for_a_person_and_others_go_on() {
    let inbox = Inbox::start(LINES, vec![strict()]).await;
    inbox
        .db
        .execute("INSERT INTO app.broken VALUES ('evt_ch_a_2')")
        .await;
    for n in 1..5 {
        inbox.put(&about("ch_a", n)).await;
        inbox.put(&about("ch_b", n)).await;
    }
    inbox.until_outcome(&key("ch_b", 4), "lines").await;
    until("the head is held", async || {
        state(&inbox.db, "evt_ch_a_2").await.as_deref() == Some("held")
    })
    .await;
    let timeline = inbox.timeline("evt_ch_a_2").await;
    assert_eq!(timeline.event.state, "held");
    let reason = timeline.deliveries[0].state_reason.clone().unwrap();
    assert!(reason.contains("no such account"), "{reason}");
    assert!(timeline.outcomes.is_empty());
    assert_eq!(timeline.attempts[0].verdict, "permanent");
    for n in 3..5 {
        assert_eq!(
            state(&inbox.db, &key("ch_a", n)).await.as_deref(),
            Some("blocked")
        );
    }
    assert_eq!(written(&inbox.db).await["ch_a"], [1]);
    inbox.db.verify().await;
}

#[tokio::test]
async fn a_person_has_a_held_head_tried_again_and_then_gives_it_up() {
    let inbox = Inbox::start(LINES, vec![strict()]).await;
    inbox
        .db
        .execute("INSERT INTO app.broken VALUES ('evt_ch_a_2')")
        .await;
    for n in 1..4 {
        inbox.put(&about("ch_a", n)).await;
    }
    let held_in_run = async |run: i16| {
        until(&format!("run {run} is held"), async || {
            let timeline = inbox.timeline("evt_ch_a_2").await;
            timeline.event.state == "held" && timeline.deliveries[0].run == run
        })
        .await;
    };
    held_in_run(1).await;
    let decision = |resolution| decision("evt_ch_a_2".into(), resolution);
    let store = inbox.engine.store();
    let retried = store.resolve(&decision(Resolution::Retry)).await.unwrap();
    assert_eq!((retried.run, retried.new_run), (1, Some(2)));
    // Still broken.
    held_in_run(2).await;
    assert_eq!(written(&inbox.db).await["ch_a"], [1]);
    inbox.db.verify().await;
    let dead = store.resolve(&decision(Resolution::Dead)).await.unwrap();
    assert_eq!((dead.run, dead.new_run), (2, None));
    inbox.until_outcome("evt_ch_a_3", "lines").await;
    let timeline = inbox.timeline("evt_ch_a_2").await;
    let ends: Vec<(&str, &str, i32)> = timeline
        .outcomes
        .iter()
        .map(|o| (o.result.as_str(), o.decided_by.as_str(), o.attempts))
        .collect();
    assert_eq!(ends, [("dead", "handler", 1), ("dead", "operator", 1)]);
    inbox.db.verify().await;
}

#[tokio::test]
async fn a_replay_of_what_is_held_begins_anew_in_its_place() {
    let inbox = Inbox::start(LINES, vec![strict()]).await;
    inbox
        .db
        .execute("INSERT INTO app.broken VALUES ('evt_ch_a_2')")
        .await;
    for n in 1..5 {
        inbox.put(&about("ch_a", n)).await;
    }
    until("the head is held", async || {
        state(&inbox.db, "evt_ch_a_2").await.as_deref() == Some("held")
    })
    .await;
    let request = ReplayRequest {
        source: "stripe".into(),
        key: "evt_ch_a_2".into(),
        handler: "lines".into(),
        force: false,
        expected_run: Some(2),
        reason: "account made".into(),
        actor: "test".into(),
    };
    let store = inbox.engine.store();
    let refused = store.replay(&request).await.unwrap_err();
    assert!(
        refused.to_string().contains("the last run is 1"),
        "{refused}"
    );
    // Still broken: held again, in its second run.
    let request = ReplayRequest {
        expected_run: Some(1),
        ..request
    };
    assert_eq!(store.replay(&request).await.unwrap().run, 2);
    until("it is held again", async || {
        let timeline = inbox.timeline("evt_ch_a_2").await;
        timeline.event.state == "held" && timeline.deliveries[0].run == 2
    })
    .await;
    inbox.db.verify().await;
    inbox.db.execute("DELETE FROM app.broken").await;
    let request = ReplayRequest {
        expected_run: None,
        ..request
    };
    assert_eq!(store.replay(&request).await.unwrap().run, 3);
    let (result, timeline) = inbox.until_run("evt_ch_a_2", "lines", 3).await;
    assert_eq!(result, "succeeded");
    let results: Vec<&str> = timeline
        .outcomes
        .iter()
        .map(|o| o.result.as_str())
        .collect();
    assert_eq!(results, ["dead", "dead", "succeeded"]);
    inbox.until_outcome("evt_ch_a_4", "lines").await;
    assert_eq!(written(&inbox.db).await["ch_a"], [1, 2, 3, 4]);
    inbox.db.verify().await;
}

fn decision(key: String, resolution: Resolution) -> ResolveRequest {
    ResolveRequest {
        source: "stripe".into(),
        key,
        handler: "lines".into(),
        resolution,
        reason: "account made".into(),
        evidence: None,
        actor: "test".into(),
    }
}

/// A held delivery, and one behind it.
async fn held() -> Inbox {
    let inbox = Inbox::start(LINES, vec![strict()]).await;
    inbox
        .db
        .execute("INSERT INTO app.broken VALUES ('evt_ch_a_2')")
        .await;
    for n in 2..4 {
        inbox.put(&about("ch_a", n)).await;
    }
    until("the head is held", async || {
        state(&inbox.db, "evt_ch_a_2").await.as_deref() == Some("held")
    })
    .await;
    inbox
}

#[tokio::test]
async fn what_is_held_in_the_last_run_there_can_be_does_not_begin_anew() {
    let inbox = held().await;
    inbox
        .db
        .execute("UPDATE oncehook.delivery SET run = 32767 WHERE state = 'held'")
        .await;
    let request = ReplayRequest {
        source: "stripe".into(),
        key: "evt_ch_a_2".into(),
        handler: "lines".into(),
        force: false,
        expected_run: None,
        reason: "account made".into(),
        actor: "test".into(),
    };
    let store = inbox.engine.store();
    let retry = decision("evt_ch_a_2".into(), Resolution::Retry);
    for refused in [
        store.replay(&request).await.unwrap_err(),
        store.resolve(&retry).await.unwrap_err(),
    ] {
        assert!(matches!(refused, StoreError::Refused(_)), "{refused}");
        let says =
            "event evt_ch_a_2 of stripe and handler lines: run 32767 is the last there can be";
        assert!(refused.to_string().contains(says), "{refused}");
    }
    let dead = decision("evt_ch_a_2".into(), Resolution::Dead);
    store.resolve(&dead).await.unwrap();
    inbox.until_outcome("evt_ch_a_3", "lines").await;
}

#[tokio::test]
async fn who_decides_about_what_waits_in_its_lane_is_told_for_whom_it_waits() {
    let inbox = held().await;
    let refusal = async || {
        let wanted = decision("evt_ch_a_3".into(), Resolution::Dead);
        let refused = inbox.engine.store().resolve(&wanted).await.unwrap_err();
        assert!(matches!(refused, StoreError::Refused(_)), "{refused}");
        refused.to_string()
    };
    assert_eq!(
        refusal().await,
        "event evt_ch_a_3 of stripe and handler lines: it is blocked: it waits in its lane behind event evt_ch_a_2 of \
         stripe, which is held; decide about that one first: its lane goes on then"
    );
    inbox
        .db
        .execute("UPDATE oncehook.delivery SET state = 'ready', state_reason = NULL, run_at = 'infinity' WHERE state = 'held'")
        .await;
    let refused = refusal().await;
    let says = "behind event evt_ch_a_2 of stripe, which is ready; there is nothing to decide: it comes when";
    assert!(refused.contains(says), "{refused}");
}

#[tokio::test]
async fn an_event_in_no_lane_of_a_strict_handler_is_a_dead_letter() {
    let mut spec = strict();
    spec.lane = Some(LaneBy::parse("json:/data/object/nothing").unwrap());
    let inbox = Inbox::start(LINES, vec![spec]).await;
    inbox
        .db
        .execute("INSERT INTO app.broken VALUES ('evt_ch_a_2')")
        .await;
    inbox.put(&about("ch_a", 2)).await;
    let (result, _) = inbox.until_outcome("evt_ch_a_2", "lines").await;
    assert_eq!(result, "dead");
}

#[tokio::test]
async fn what_is_held_is_listed_and_counted() {
    let app = TestApp::builder()
        .stripe("stripe")
        .setup(LINES)
        .setup("INSERT INTO app.broken VALUES ('evt_ch_a_1')")
        .sql_handler(
            "lines",
            "app.write",
            &format!("lane = \"entity\"\nlane_on_dead = \"hold\"\n{QUICK}"),
        )
        .start()
        .await;
    app.post_stripe("stripe", &about("ch_a", 1)).await;
    app.post_stripe("stripe", &about("ch_b", 1)).await;
    app.until_outcome("stripe", "evt_ch_b_1", "lines").await;
    until("it is listed as held", async || {
        let (status, page) = app.get("/v1/events?state=held").await;
        assert_eq!(status, 200, "{page}");
        page["events"][0]["key"] == "evt_ch_a_1" && page["events"][1].is_null()
    })
    .await;
    crate::crash::until_metric(
        &app,
        "oncehook_deliveries_held_total{handler=\"lines\"}",
        |n| n >= 1.0,
    )
    .await;
}

/// A settle transaction holds a head and then wants the one behind it.
#[tokio::test]
async fn who_retires_a_handler_takes_the_head_of_a_lane_before_what_waits_behind_it() {
    let db = Arc::new(TestDb::new().await);
    db.execute(LINES).await;
    let inbox = Inbox::on(db, vec![stripe_source()], vec![lines()], None).await;
    for n in 1..3 {
        inbox.put(&about("ch_a", n)).await;
    }
    until("the lane has its head", async || {
        state(&inbox.db, "evt_ch_a_1").await.as_deref() == Some("ready")
    })
    .await;
    // The head is the one with the higher key, as after a replay or `not_yet`.
    inbox
        .db
        .execute(
            "BEGIN;
             UPDATE oncehook.delivery SET state = 'blocked', lane_seq = nextval('oncehook.lane_seq') WHERE state = 'ready';
             UPDATE oncehook.delivery SET state = 'ready' WHERE lane_seq = (SELECT min(lane_seq) FROM oncehook.delivery);
             COMMIT",
        )
        .await;
    let settling = inbox.db.client().await;
    let lock = |state: &str| {
        format!("SELECT FROM oncehook.delivery WHERE state = '{state}' FOR UPDATE NOWAIT")
    };
    settling.batch_execute("BEGIN").await.unwrap();
    settling.batch_execute(&lock("ready")).await.unwrap();
    let store = inbox.engine.store().clone();
    let retiring =
        tokio::spawn(async move { store.retire_handler("lines", "a test", "eva").await });
    until("the other waits for it", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        inbox.db.one::<i64>(waiting).await == 1
    })
    .await;
    settling.batch_execute(&lock("blocked")).await.unwrap();
    settling.batch_execute("COMMIT").await.unwrap();
    assert_eq!(retiring.await.unwrap().unwrap(), 2);
}
