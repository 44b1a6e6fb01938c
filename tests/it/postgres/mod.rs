//! Traps of PostgreSQL, met on a real one.

mod cancel;
mod claim;
mod durable;
mod migrate;
mod outage;
mod partition;
mod pool;
mod pooler;
mod race;
mod readonly;
mod signal;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Node, OwnCluster, connect, until};

/// A sender is told within two seconds; the rest is for a machine that is busy with other tests.
const ANSWERED_WITHIN: Duration = Duration::from_secs(4);

/// Sends; expects 503 with `Retry-After` in time.
async fn expect_unavailable(node: &Node, event: &Value) {
    let start = Instant::now();
    let response = node.post_stripe("stripe", event).await;
    let (id, said) = (&event["id"], node.output());
    assert_eq!(
        response.status(),
        503,
        "{id} must not be acknowledged: {said}"
    );
    let after = response.headers()["retry-after"].to_str().unwrap();
    assert!(after.parse::<u16>().unwrap() > 0);
    assert!(start.elapsed() < ANSWERED_WITHIN, "{:?}", start.elapsed());
}

/// Comes again as a provider does, until it is told 200.
async fn until_acknowledged(node: &Node, event: &Value) {
    until("it is acknowledged", async || {
        let status = node.post_stripe("stripe", event).await.status();
        assert!(status == 200 || status == 503, "{status}");
        status == 200
    })
    .await;
}

/// Changes a setting of the whole cluster and waits until it holds.
async fn alter_system(cluster: &OwnCluster, name: &str, value: &str) {
    let admin = connect(cluster.url()).await.unwrap();
    for sql in [
        &format!("ALTER SYSTEM SET {name} = {value}"),
        "SELECT pg_reload_conf()",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    until("the setting holds", async || {
        let shown = admin.query_one(&format!("SHOW {name}"), &[]).await;
        shown.unwrap().get::<_, String>(0) == value
    })
    .await;
}

/// The status of `/readyz`.
async fn readiness(node: &Node) -> u16 {
    node.get("/readyz").await.0.as_u16()
}
