//! PostgreSQL is gone, full, crowded or slow: 503 in time, and recovery without a restart.

use std::time::Duration;

use crate::crash::{Sender, booking, paid, proxied, put, until_booked_once};
use crate::support::{Action, OwnCluster, PgProxy, connect};

use super::{expect_unavailable, readiness, until_acknowledged};

#[tokio::test]
async fn f28_without_a_database_nothing_is_acknowledged_and_all_comes_back_with_it() {
    let cluster = OwnCluster::start().await;
    let app = booking().on(cluster.database().await).start().await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    cluster.stop().await;
    for _ in 0..3 {
        expect_unavailable(&app, &paid("evt_2")).await;
    }
    assert_eq!(readiness(&app).await, 503);
    cluster.restart().await;
    until_acknowledged(&app, &paid("evt_2")).await;
    until_booked_once(&app, &app.db, "evt_2").await;
    assert_eq!(readiness(&app).await, 200);
}

#[tokio::test]
async fn f28_killed_with_a_batch_in_flight_postgresql_keeps_what_was_acknowledged() {
    let cluster = OwnCluster::start().await;
    let db = cluster.database().await;
    let proxy = PgProxy::start(&db.url).await;
    let url = proxy.url(&db.name);
    let app = booking().on(db).database_url(url).start().await;
    put(&app, &paid("evt_1")).await;
    proxy.arm_after("ingest_reserve:", "COMMIT", Action::FreezeBefore);
    let sent = Sender::to(&app).spawn(paid("evt_2"));
    proxy.until_fired(1).await;
    cluster.kill().await;
    proxy.thaw();
    let answer = sent.await.unwrap();
    assert_eq!(answer, Some((503, false)), "its COMMIT reached nobody");
    cluster.restart().await;
    assert_eq!(app.db.count("event_key WHERE key = 'evt_1'").await, 1);
    assert_eq!(app.db.count("event_key WHERE key = 'evt_2'").await, 0);
    until_acknowledged(&app, &paid("evt_2")).await;
    for key in ["evt_1", "evt_2"] {
        until_booked_once(&app, &app.db, key).await;
    }
}

#[tokio::test]
async fn f28_what_the_database_has_no_room_for_is_not_acknowledged() {
    let app = booking()
        .setup(
            "CREATE FUNCTION app.full() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = TG_ARGV[0]; END $$",
        )
        .start()
        .await;
    // Disk, memory, connections.
    for code in ["53100", "53200", "53300"] {
        app.db
            .execute(&format!("CREATE TRIGGER no_room BEFORE INSERT ON oncehook.event_key FOR EACH ROW EXECUTE FUNCTION app.full('{code}')"))
            .await;
        let key = format!("evt_{code}");
        expect_unavailable(&app, &paid(&key)).await;
        app.db
            .execute("DROP TRIGGER no_room ON oncehook.event_key")
            .await;
        assert!(!put(&app, &paid(&key)).await, "it is new");
        until_booked_once(&app, &app.db, &key).await;
    }
}

#[tokio::test]
async fn f28_a_database_with_too_many_connections_is_503_until_there_are_fewer() {
    let cluster = OwnCluster::with_settings(&[("max_connections", "20")]).await;
    let app = booking().on(cluster.database().await).start().await;
    // Ours are taken away, and others take every place.
    let ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oncehook'";
    let mut others = Vec::new();
    let admin = connect(cluster.url()).await.unwrap();
    for _ in 0..100 {
        admin.batch_execute(ours).await.unwrap();
        match connect(cluster.url()).await {
            Ok(other) => others.push(other),
            Err(_) if others.len() > 15 => break,
            Err(_) => {}
        }
    }
    admin.batch_execute(ours).await.unwrap();
    while let Ok(other) = connect(cluster.url()).await {
        others.push(other);
    }
    expect_unavailable(&app, &paid("evt_1")).await;
    drop(others);
    until_acknowledged(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
}

#[tokio::test]
async fn f28_a_database_that_answers_slowly_or_not_at_all_is_503_in_time() {
    let (db, proxy) = proxied().await;
    let url = proxy.url(&db.name);
    let app = booking().on(db).database_url(url).start().await;
    put(&app, &paid("evt_1")).await;
    proxy.delay(Duration::from_secs(1));
    expect_unavailable(&app, &paid("evt_2")).await;
    proxy.delay(Duration::ZERO);
    until_acknowledged(&app, &paid("evt_2")).await;
    proxy.freeze();
    expect_unavailable(&app, &paid("evt_3")).await;
    proxy.thaw();
    until_acknowledged(&app, &paid("evt_3")).await;
    for key in ["evt_1", "evt_2", "evt_3"] {
        until_booked_once(&app, &app.db, key).await;
    }
}
