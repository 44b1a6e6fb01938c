//! A primary that turns into a standby while connections to it are open.

use crate::crash::{booking, paid, put, until_booked_once};
use crate::support::{OwnCluster, until};

use super::{alter_system, expect_unavailable, readiness, until_acknowledged};

const READ_ONLY: &str = "default_transaction_read_only";

#[tokio::test]
async fn f73_a_read_only_primary_is_503_and_not_ready_until_it_is_writable_again() {
    read_only_for_a_while("").await;
}

/// There, what another client left in the session does not count, and what is configured does.
#[tokio::test]
async fn f73_the_same_where_sessions_are_lent() {
    read_only_for_a_while("pooling = \"transaction\"").await;
}

async fn read_only_for_a_while(lines: &str) {
    let cluster = OwnCluster::start().await;
    let app = booking()
        .database_toml(lines)
        .on(cluster.database().await)
        .start()
        .await;
    put(&app, &paid("evt_1")).await;
    until_booked_once(&app, &app.db, "evt_1").await;
    alter_system(&cluster, READ_ONLY, "on").await;
    for _ in 0..3 {
        expect_unavailable(&app, &paid("evt_2")).await;
    }
    assert_eq!(readiness(&app).await, 503);
    assert_eq!(app.db.count("event_key").await, 1);
    alter_system(&cluster, READ_ONLY, "off").await;
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
    alter_system(&cluster, READ_ONLY, "on").await;
    // At most once per bad connection, then 200; never 200 without a row.
    until_acknowledged(&app, &paid("evt_1")).await;
    assert!(put(&app, &paid("evt_1")).await);
    // The dispatcher's and the others' connections too.
    until_booked_once(&app, &app.db, "evt_1").await;
    until("it is ready", async || readiness(&app).await == 200).await;
}
