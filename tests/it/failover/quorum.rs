//! The primary lives, and no standby confirms: nothing is acknowledged, whatever happens to the
//! commits that wait.

use crate::crash::{Sender, booked, booking, paid, put, until_booked_once};
use crate::support::{PgProxy, until};

use super::{
    Set, expect_refused, fail_over, send_until_acknowledged, until_waiting_for_standby,
    waiting_for_standby,
};

#[tokio::test]
async fn an_old_primary_behind_a_partition_acknowledges_nothing() {
    let (mut app, proxy, replicas) = Set::synchronous().await.start(booking()).await;
    let url = proxy.url(&app.db.name);
    put(&app, &paid("evt_before")).await;
    until_booked_once(&app, &app.db, "evt_before").await;
    replicas.until_caught_up().await;
    replicas.cut_links();
    // It does not even acknowledge a copy of what it has known all along: who asks is told what holds
    // on the other side, where there is a new primary now, with a node of its own.
    let copy = expect_refused(&app, &["evt_before"]);
    let ((), promoted) = tokio::join!(copy, replicas.promote());
    let other = PgProxy::start(promoted.url()).await;
    let toml = app.toml().replace(&url, &other.url(&app.db.name));
    let second = app.another_node_with(&toml).await;
    let db = app.db.on_server(promoted.url());

    let (both, ready) = (
        paid("evt_both"),
        app.http.get(format!("http://{}/readyz", app.public)),
    );
    let ((), ready, known) = tokio::join!(
        expect_refused(&app, &["evt_both", "evt_old"]),
        ready.send(),
        send_until_acknowledged(&second, &both),
    );
    assert!(!known, "new on this side");
    until_booked_once(&second, &db, "evt_both").await;
    assert!(put(&second, &paid("evt_before")).await, "known here too");
    // The old one says that it takes nothing, shows nothing that is not safe, and does nothing.
    let ready = ready.unwrap().status();
    assert_eq!(ready, 503, "it can acknowledge nothing and is not ready");
    for id in ["evt_both", "evt_old"] {
        assert_eq!(app.timeline("stripe", id).await, None, "{id}");
        assert_eq!(booked(&app.db, id).await, 0, "{id}");
    }
    assert_eq!(db.count("event_key WHERE key = 'evt_old'").await, 0);
}

#[tokio::test]
async fn a_commit_whose_wait_for_a_standby_is_cancelled_is_not_acknowledged_and_may_be_lost() {
    let (app, proxy, replicas) = Set::synchronous().await.start(booking()).await;
    replicas.cut_links();
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    let waiting = until_waiting_for_standby(&app.db).await;
    let cancel = format!("SELECT pg_cancel_backend({waiting})");
    assert!(app.db.one::<bool>(&cancel).await);
    let answer = sent.await.unwrap();
    assert_eq!(answer, Some((503, false)), "no standby has it");
    app.until_logged("not durable").await;
    // PostgreSQL has told its client of a success, and shows the event to everybody.
    assert_eq!(app.db.count("event_key").await, 1);

    replicas.primary.kill().await;
    let (_, db) = fail_over(&replicas, &proxy, &app.db).await;
    assert_eq!(db.count("event_key").await, 0, "it is lost");
    assert!(!send_until_acknowledged(&app, &paid("evt_1")).await);
    until_booked_once(&app, &db, "evt_1").await;
}

#[tokio::test]
async fn a_commit_whose_backend_is_terminated_while_it_waits_is_not_acknowledged() {
    let (app, _proxy, replicas) = Set::synchronous().await.start(booking()).await;
    replicas.cut_links();
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    let waiting = until_waiting_for_standby(&app.db).await;
    let terminate = format!("SELECT pg_terminate_backend({waiting})");
    assert!(app.db.one::<bool>(&terminate).await);
    // The node writes it once more, finds it, and that commit waits.
    let answer = sent.await.unwrap();
    assert_eq!(answer, Some((503, false)), "no standby has it");
    assert_eq!(app.db.count("event_key").await, 1);
    replicas.mend_links();
    send_until_acknowledged(&app, &paid("evt_1")).await;
    let standby = app.db.on_server(replicas.furthest().await.url());
    until("the standby has it", async || {
        standby.count("event_key").await == 1
    })
    .await;
    until_booked_once(&app, &app.db, "evt_1").await;
}

/// A restart shows what was committed here and nowhere else.
#[tokio::test]
async fn a_duplicate_of_an_event_that_no_standby_has_waits_for_one() {
    let (app, _proxy, replicas) = Set::synchronous().await.start(booking()).await;
    replicas.cut_links();
    let sent = Sender::to(&app).spawn(paid("evt_1"));
    until_waiting_for_standby(&app.db).await;
    replicas.primary.kill().await;
    replicas.primary.restart().await;
    assert_eq!(sent.await.unwrap(), Some((503, false)));
    assert_eq!(app.db.count("event_key").await, 1, "visible again");
    let standby = app.db.on_server(replicas.furthest().await.url());
    assert_eq!(standby.count("event_key").await, 0);

    expect_refused(&app, &["evt_1"]).await;
    until_waiting_for_standby(&app.db).await;
    replicas.mend_links();
    assert!(send_until_acknowledged(&app, &paid("evt_1")).await);
    until("the standby has the original", async || {
        standby.count("event").await == 1
    })
    .await;
    until_booked_once(&app, &app.db, "evt_1").await;
}

/// Each probe that waits for a standby holds a backend, also when nobody waits for its answer.
#[tokio::test]
async fn readiness_probes_do_not_pile_up_and_a_late_answer_is_nobodys() {
    let (app, _proxy, replicas) = Set::synchronous().await.start(booking()).await;
    let ask = async || {
        let asked = app.http.get(format!("http://{}/readyz", app.public));
        asked.send().await.unwrap().status().as_u16()
    };
    replicas.cut_links();
    assert_eq!(ask().await, 503);
    assert_eq!(ask().await, 503);
    let waiting = waiting_for_standby(&app.db).await.len();
    assert_eq!(waiting, 1, "one probe waits for all who ask");

    // Its answer is a good one, and an old one when somebody asks again.
    replicas.mend_links();
    until("no commit waits", async || {
        waiting_for_standby(&app.db).await.is_empty()
    })
    .await;
    // Meanwhile the node has read the answer too.
    put(&app, &paid("evt_1")).await;
    replicas.cut_links();
    assert_eq!(ask().await, 503, "the answer of another time is nobody's");
    replicas.mend_links();
    until("it is ready", async || ask().await == 200).await;
}
