//! What runs beside the two pipelines: partitions ahead, gauges, wake-ups across nodes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::dispatch::Registry;
use crate::store::keeper::DAYS_AHEAD;
use crate::store::{Store, Wake};
use crate::telemetry;

const KEEPER_INTERVAL: Duration = Duration::from_hours(1);
/// After a failed round.
const KEEPER_PAUSE: Duration = Duration::from_secs(30);
const GAUGE_INTERVAL: Duration = Duration::from_secs(15);
/// One wake-up per node and interval at most: NOTIFY takes a lock that every committing notifier
/// in the cluster shares.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(25);
/// Between tries to listen again.
const SIGNAL_PAUSE: Duration = Duration::from_secs(1);

/// Makes partitions ahead and caps tables, hourly.
pub(super) async fn keep(store: Store) {
    loop {
        let made = store.make_partitions().await;
        let capped = store.cap_rejected().await;
        let pause = match (made, capped) {
            (Ok(made), Ok(capped)) => {
                if made > 0 || capped > 0 {
                    tracing::info!(partitions = made, rejected_removed = capped, "keeper");
                }
                KEEPER_INTERVAL
            }
            (made, capped) => {
                for error in [made.err(), capped.err()].into_iter().flatten() {
                    tracing::error!(error = %error, days_ahead = DAYS_AHEAD, "keeper failed; it tries again");
                }
                KEEPER_PAUSE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Reads the gauges.
pub(super) async fn measure(store: Store, registry: Arc<Registry>) {
    loop {
        let known: Vec<i32> = registry.current().handlers.keys().copied().collect();
        match store.gauges(&known).await {
            Ok(gauges) => {
                telemetry::gauges(&gauges);
                if gauges.unknown_handler > 0 && !known.is_empty() {
                    tracing::warn!(
                        deliveries = gauges.unknown_handler,
                        "deliveries wait for handlers that this node does not know"
                    );
                }
                if gauges.days_ahead < 2 {
                    tracing::error!(days = gauges.days_ahead, "partitions are about to run out");
                }
            }
            Err(error) => tracing::warn!(error = %error, "gauges not read"),
        }
        tokio::time::sleep(GAUGE_INTERVAL).await;
    }
}

/// Wakes this node's dispatcher after its own commits, tells other nodes off the commit path, and
/// hears them. Losing the connection costs latency only.
pub(super) async fn signal(store: Store, stored: Arc<Notify>, wake: Arc<Wake>) {
    if !store.hears() {
        tracing::info!(
            "no database.direct_url: events that other nodes receive are found by polling"
        );
    }
    loop {
        let line = match store.listen(Arc::clone(&wake)).await {
            Ok(line) => {
                // What was said while nobody listened.
                if line.is_some() {
                    wake.switched();
                }
                line
            }
            Err(error) => {
                tracing::debug!(error = %error, "not listening for wake-ups; polling goes on");
                None
            }
        };
        let retry = tokio::time::sleep(SIGNAL_PAUSE);
        tokio::pin!(retry);
        // Others are told of all commits of an interval at once; our own dispatcher at each.
        let mut untold = false;
        let mut quiet_until = Instant::now();
        loop {
            tokio::select! {
                () = stored.notified() => {
                    wake.work();
                    untold = line.is_some();
                }
                () = tokio::time::sleep_until(quiet_until), if untold => {
                    untold = false;
                    quiet_until = Instant::now() + SIGNAL_INTERVAL;
                    if let Some(line) = &line
                        && (line.send().await.is_err() || line.is_closed())
                    {
                        break;
                    }
                }
                () = &mut retry => {
                    if line.as_ref().is_none_or(crate::store::Signal::is_closed) {
                        break;
                    }
                    retry.as_mut().reset(Instant::now() + SIGNAL_PAUSE);
                }
            }
        }
    }
}
