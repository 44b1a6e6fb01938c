//! Lanes under SIGKILL.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncehook::store::ReplayRequest;
use oncehook::{Settings, Store};

use crate::crash::{POLL, QUICK, kill_before, proxied, put, until_metric};
use crate::support::inbox::{Inbox, stripe_source};
use crate::support::{Action, AppBuilder, TestApp, TestDb, until};

use super::{LINES, about, lines, written};

fn lined() -> AppBuilder {
    lined_after("")
}

/// The same with further lines of `[dispatch]`.
fn lined_after(dispatch: &str) -> AppBuilder {
    TestApp::builder()
        .stripe("stripe")
        .setup(LINES)
        .toml(POLL)
        .toml(dispatch)
        .sql_handler(
            "lines",
            "app.write",
            &format!("lane = \"entity\"\nlease = \"1s\"\n{QUICK}"),
        )
}

#[tokio::test]
async fn killed_between_the_commit_and_its_look_the_lane_is_mended() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = lined().on(db).database_url(url).start().await;
    // Acknowledged, and the look at the lane does not reach the server.
    proxy.arm("lane_promote:", Action::FreezeBefore);
    assert!(!put(&app, &about("ch_a", 1)).await);
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    assert_eq!(
        super::state(&app.db, "evt_ch_a_1").await.as_deref(),
        Some("blocked")
    );
    app.restart().await;
    until_metric(&app, "oncehook_lanes_mended_total", |n| n >= 1.0).await;
    app.until_outcome("stripe", "evt_ch_a_1", "lines").await;
    app.db.verify().await;
}

#[tokio::test]
async fn killed_between_the_delete_of_the_head_and_the_promotion_nothing_of_both_is_done() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let mut app = lined_after("enabled = false")
        .on(db)
        .database_url(url)
        .start()
        .await;
    put(&app, &about("ch_a", 1)).await;
    put(&app, &about("ch_a", 2)).await;
    until("the lane has its head", async || {
        super::state(&app.db, "evt_ch_a_1").await.as_deref() == Some("ready")
    })
    .await;
    proxy.arm("lane_promote:", Action::FreezeBefore);
    crate::crash::begin_handling(&mut app).await;
    proxy.until_fired(1).await;
    kill_before(&mut app, &proxy).await;
    let state = super::state(&app.db, "evt_ch_a_1").await;
    assert_eq!(
        (state.as_deref(), app.db.count("outcome").await),
        (Some("leased"), 0)
    );
    app.restart().await;
    app.until_outcome("stripe", "evt_ch_a_2", "lines").await;
    assert_eq!(written(&app.db).await["ch_a"], [1, 2]);
    app.db.verify().await;
}

#[tokio::test]
async fn a_replay_whose_commit_lost_its_answer_has_looked_at_the_lane() {
    let (db, proxy) = proxied().await;
    let mut app = lined().on(db).start().await;
    app.db
        .execute("INSERT INTO app.broken VALUES ('evt_ch_a_1')")
        .await;
    put(&app, &about("ch_a", 1)).await;
    app.until_outcome("stripe", "evt_ch_a_1", "lines").await;
    // No node looks through the lanes meanwhile.
    app.kill9();
    let url = proxy.url(&app.db.name);
    let operator = Store::new(Settings::parse(&url).unwrap(), 1).unwrap();
    proxy.arm_after("audit_insert:", "commit", Action::CutAfter);
    let replayed = operator
        .replay(&ReplayRequest {
            source: "stripe".to_owned(),
            key: "evt_ch_a_1".to_owned(),
            handler: "lines".to_owned(),
            force: false,
            expected_run: None,
            reason: "a test".to_owned(),
            actor: "eva".to_owned(),
        })
        .await;
    proxy.until_fired(1).await;
    assert!(replayed.is_err(), "{replayed:?}");
    let state = super::state(&app.db, "evt_ch_a_1").await;
    assert_eq!(state.as_deref(), Some("ready"));
}

#[tokio::test]
async fn a_lane_that_stands_still_is_found_behind_many_that_do_not() {
    let db = Arc::new(TestDb::new().await);
    db.execute(LINES).await;
    let inbox = Inbox::on(db, vec![stripe_source()], vec![lines()], None).await;
    // One more than a statement of the search looks at; the last one has no head.
    inbox
        .db
        .execute(
            "INSERT INTO oncehook.delivery (event_id, handler_id, state, lane, lane_seq, run_at)
             SELECT oncehook.uuid7(now()), (SELECT id FROM oncehook.handler), s, 'l' || to_char(n, 'FM000000'), nextval('oncehook.lane_seq'), now()
               FROM generate_series(1, 10001) n, unnest(ARRAY['ready', 'blocked']) s WHERE n <= 10000 OR s = 'blocked'",
        )
        .await;
    until("it has its head", async || {
        let last = "delivery WHERE lane = 'l010001' AND state = 'ready'";
        inbox.db.count(last).await == 1
    })
    .await;
}

#[tokio::test]
async fn lanes_keep_their_order_while_nodes_are_killed() {
    let mut app = lined().start().await;
    let mut second = app.another_node().await;
    let objects = ["ch_a", "ch_b", "ch_c"];
    let mut expected: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for n in 0..60_usize {
        for object in objects {
            // It comes again until it is told 200, and only then the next one comes.
            let mut node = n % 2;
            loop {
                let sent = match node {
                    0 => app.try_post_stripe("stripe", &about(object, n)).await,
                    _ => second.try_post_stripe("stripe", &about(object, n)).await,
                };
                if sent.is_ok_and(|answer| answer.status() == 200) {
                    break;
                }
                node = 1 - node;
            }
            expected
                .entry(object.to_owned())
                .or_default()
                .push(i32::try_from(n).unwrap());
        }
        match n % 20 {
            7 => {
                app.kill9();
                app.restart().await;
            }
            15 => {
                second.kill9();
                second.restart().await;
            }
            _ => {}
        }
    }
    until("nothing is left to do", async || {
        app.db.count("delivery").await == 0
    })
    .await;
    assert_eq!(written(&app.db).await, expected);
    app.db.verify().await;
}
