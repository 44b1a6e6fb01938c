//! A primary that turns into a standby while connections to it are open.

use crate::crash::{booking, paid, put, until_booked_once};
use crate::support::{OwnCluster, connect, until};

use super::{expect_unavailable, readiness, until_acknowledged};

/// Changes a setting of the whole cluster and waits until it holds.
async fn alter_system(cluster: &OwnCluster, value: &str) {
    let admin = connect(cluster.url()).await.unwrap();
    for sql in [
        &format!("ALTER SYSTEM SET default_transaction_read_only = {value}"),
        "SELECT pg_reload_conf()",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    until("the setting holds", async || {
        let shown = admin
            .query_one("SHOW default_transaction_read_only", &[])
            .await;
        shown.unwrap().get::<_, String>(0) == value
    })
    .await;
}

#[tokio::test]
async fn f73_a_read_only_primary_is_503_and_not_ready_until_it_is_writable_again() {
    let cluster = OwnCluster::start().await;
    let app = booking().on(cluster.database().await).start().await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    alter_system(&cluster, "on").await;
    for _ in 0..3 {
        expect_unavailable(&app, &paid("evt_2")).await;
    }
    assert_eq!(readiness(&app).await, 503);
    assert_eq!(app.db.count("event_key").await, 1);
    alter_system(&cluster, "off").await;
    until_acknowledged(&app, &paid("evt_2")).await;
    until_booked_once(&app, &app.db, "evt_2").await;
    assert_eq!(readiness(&app).await, 200);
}

/// As after a failover behind one address: what is pooled leads to the old primary, what is new
/// to the new one.
#[tokio::test]
async fn f73_pooled_connections_that_turned_read_only_are_replaced_without_a_restart() {
    let cluster = OwnCluster::start().await;
    let app = booking().on(cluster.database().await).start().await;
    for n in 0..3 {
        let key = format!("evt_warm_{n}");
        put(&app, &paid(&key)).await;
        until_booked_once(&app, &app.db, &key).await;
    }
    // Sessions follow the cluster's setting, unless they begin after their database has its own.
    let name = &app.db.name;
    app.db
        .execute_outside(&format!(
            "ALTER DATABASE {name} SET default_transaction_read_only = off"
        ))
        .await;
    alter_system(&cluster, "on").await;
    // At most once per bad connection, then 200; never 200 without a row.
    until_acknowledged(&app, &paid("evt_1")).await;
    assert!(put(&app, &paid("evt_1")).await);
    // The dispatcher's and the others' connections too.
    until_booked_once(&app, &app.db, "evt_1").await;
    until("it is ready", async || readiness(&app).await == 200).await;
}
