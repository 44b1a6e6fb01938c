//! What runs beside the two pipelines: partitions ahead, gauges, wake-ups across nodes.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::dispatch::Registry;
use crate::store::bulk::{self, StoredRequest};
use crate::store::keeper::DAYS_AHEAD;
use crate::store::{Signal, Store, Wake};
use crate::telemetry;

const KEEPER_INTERVAL: Duration = Duration::from_hours(1);
/// After a failed round.
const KEEPER_PAUSE: Duration = Duration::from_secs(30);
const GAUGE_INTERVAL: Duration = Duration::from_secs(15);
/// After a look at lanes that failed.
const PROMOTE_PAUSE: Duration = Duration::from_millis(100);
/// Between two looks for lanes without a head.
const MEND_INTERVAL: Duration = Duration::from_secs(2);
/// Between two looks for a page of a bulk replay that is due.
const REPLAY_POLL: Duration = Duration::from_secs(1);
/// After a page that failed; others are not to wait for this node.
const REPLAY_PAUSE: Duration = Duration::from_secs(5);
/// One wake-up per node and interval at most: NOTIFY takes a lock that every committing notifier
/// in the cluster shares.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(25);
/// After the first failed try to listen; twice as long after each further one.
const SIGNAL_PAUSE: Duration = Duration::from_secs(1);
const SIGNAL_PAUSE_MAX: Duration = Duration::from_secs(15);

/// Makes partitions ahead and caps tables, hourly. The start itself has just made them.
pub(super) async fn keep(store: Store) {
    let mut pause = KEEPER_INTERVAL;
    loop {
        tokio::time::sleep(pause).await;
        let made = store.make_partitions().await;
        let capped = store.cap_rejected().await;
        let purged = store.purge_responses().await;
        pause = match (made, capped, purged) {
            (Ok(made), Ok(capped), Ok(purged)) => {
                if made > 0 || capped > 0 || purged > 0 {
                    tracing::info!(
                        partitions = made,
                        rejected_removed = capped,
                        responses_emptied = purged,
                        "keeper"
                    );
                }
                KEEPER_INTERVAL
            }
            (made, capped, purged) => {
                for error in [made.err(), capped.err(), purged.err()]
                    .into_iter()
                    .flatten()
                {
                    tracing::error!(error = %error, days_ahead = DAYS_AHEAD, "keeper failed; it tries again");
                }
                KEEPER_PAUSE
            }
        };
    }
}

/// Looks at lanes after the commits that may have left them without a head.
pub(super) async fn promote(store: Store, stored: Arc<Notify>) {
    loop {
        let lanes = store.lanes_to_recheck().await;
        // The commit itself may have made the next one of a lane ready.
        stored.notify_one();
        let looked = store.promote_heads(&lanes).await;
        // Also after an error: a COMMIT whose answer was lost may have gone through.
        if looked.promoted > 0 || looked.error.is_some() {
            stored.notify_one();
        }
        if let Some(error) = looked.error {
            tracing::debug!(error = %error, lanes = looked.left.len(), "lanes not looked at yet");
            store.recheck_lanes(looked.left);
            tokio::time::sleep(PROMOTE_PAUSE).await;
        }
    }
}

/// Finds lanes whose node died between a commit and its look at them. One that stands still is such a
/// lane only if it is found so twice.
pub(super) async fn mend_lanes(store: Store, stored: Arc<Notify>) {
    let mut before = BTreeSet::new();
    loop {
        let began = Instant::now();
        match store.lanes_that_stand_still().await {
            Ok(now) => {
                let stuck: Vec<_> = before.intersection(&now).cloned().collect();
                if !stuck.is_empty() {
                    let looked = store.promote_heads(&stuck).await;
                    if looked.promoted > 0 {
                        telemetry::lanes_mended(looked.promoted);
                        tracing::warn!(lanes = looked.promoted, "lanes stood still and go on");
                    }
                    stored.notify_one();
                    if let Some(error) = looked.error {
                        tracing::warn!(error = %error, lanes = looked.left.len(), "lanes not mended yet");
                    }
                }
                before = now;
            }
            Err(error) => {
                tracing::debug!(error = %error, "lanes not looked through");
                before.clear();
            }
        }
        // It never takes more than a twentieth of the time.
        tokio::time::sleep(MEND_INTERVAL.max(began.elapsed() * 20)).await;
    }
}

/// Opens pages of bulk replays, one at a time: of those that people started here, at another node or by
/// command, and that nobody else goes on with.
pub(super) async fn replay(store: Store, registry: Arc<Registry>, stored: Arc<Notify>) {
    loop {
        let active = registry.current();
        let check = |request: &StoredRequest| {
            let source = active.sources.get(&request.source);
            bulk::verify(source.map(|(_, source)| source.as_ref()), request)
        };
        let pause = match store.next_page(None, &check).await {
            Ok(Some(page)) => {
                if page.opened > 0 {
                    stored.notify_one();
                }
                if page.last {
                    tracing::info!(bulk = page.bulk, "bulk replay complete");
                }
                page.wait.min(REPLAY_POLL)
            }
            Ok(None) => REPLAY_POLL,
            Err(error) => {
                tracing::warn!(error = %error, "no page of a bulk replay opened; it is tried again");
                REPLAY_PAUSE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Reads the gauges.
pub(super) async fn measure(store: Store, registry: Arc<Registry>) {
    loop {
        let active = registry.current();
        let known: Vec<i32> = active.handlers.keys().copied().collect();
        let internal: Vec<i32> = super::internals(&active)
            .sources
            .iter()
            .map(|(id, _)| *id)
            .collect();
        match store.gauges(&known, &internal).await {
            Ok(gauges) => {
                telemetry::gauges(&gauges);
                if gauges.unknown_handler > 0 && !known.is_empty() {
                    tracing::warn!(
                        deliveries = gauges.unknown_handler,
                        "deliveries wait for handlers that this node does not know"
                    );
                }
                if gauges.emitted_unknown_source > 0 && !internal.is_empty() {
                    tracing::warn!(
                        events = gauges.emitted_unknown_source,
                        "emitted events wait for sources that this node does not know"
                    );
                }
                if gauges.days_ahead < 2 {
                    tracing::error!(days = gauges.days_ahead, "partitions are about to run out");
                }
            }
            Err(error) => tracing::warn!(error = %error, "gauges not read"),
        }
        measure_operations(&store, &registry).await;
        tokio::time::sleep(GAUGE_INTERVAL).await;
    }
}

/// What is open of each operation; zero where nothing is.
async fn measure_operations(store: &Store, registry: &Registry) {
    let active = registry.current();
    let of_operations = active.handlers.values();
    let of_operations = of_operations.filter(|handler| handler.spec.operation.is_some());
    let names: Vec<(i32, &str)> = of_operations
        .map(|handler| (handler.id, handler.spec.name.as_str()))
        .collect();
    if names.is_empty() {
        return;
    }
    let ids: Vec<i32> = names.iter().map(|(id, _)| *id).collect();
    match store.operation_gauges(&ids).await {
        Ok(read) => {
            for (id, name) in names {
                let found = read.iter().find(|(handler, _)| *handler == id);
                let gauges = found.map(|(_, gauges)| *gauges).unwrap_or_default();
                telemetry::operation_gauges(name, &gauges);
            }
        }
        Err(error) => tracing::warn!(error = %error, "gauges of operations not read"),
    }
}

/// Wakes this node's dispatcher after its own commits, tells other nodes off the commit path, and
/// hears them. Losing the connection costs latency only.
pub(super) async fn signal(store: Store, stored: Arc<Notify>, wake: Arc<Wake>) {
    if !store.hears() {
        tracing::info!(
            "no database.direct_url: events that other nodes receive are found by polling"
        );
        loop {
            stored.notified().await;
            wake.work();
        }
    }
    let mut pause = SIGNAL_PAUSE;
    loop {
        match own_only(&stored, &wake, store.listen(Arc::clone(&wake))).await {
            Ok(line) => {
                if pause > SIGNAL_PAUSE {
                    tracing::info!("listening for wake-ups again");
                }
                pause = SIGNAL_PAUSE;
                // What was said while nobody listened.
                wake.switched();
                tell_and_hear(&line, &stored, &wake).await;
            }
            Err(error) => {
                let text = "not listening for wake-ups; polling goes on";
                if pause == SIGNAL_PAUSE {
                    tracing::warn!(error = %error, "{text}");
                } else {
                    tracing::debug!(error = %error, "{text}");
                }
                own_only(&stored, &wake, tokio::time::sleep(pause)).await;
                pause = SIGNAL_PAUSE_MAX.min(pause * 2);
            }
        }
    }
}

/// Wakes our own dispatcher until something else is done.
async fn own_only<T>(stored: &Notify, wake: &Wake, until: impl Future<Output = T>) -> T {
    let mut until = pin!(until);
    loop {
        tokio::select! {
            done = &mut until => return done,
            () = stored.notified() => wake.work(),
        }
    }
}

/// Until the connection is gone.
async fn tell_and_hear(line: &Signal, stored: &Notify, wake: &Wake) {
    let mut look = tokio::time::interval(SIGNAL_PAUSE);
    // Others are told of all commits of an interval at once; our own dispatcher at each.
    let mut untold = false;
    let mut ended_untold = false;
    let mut quiet_until = Instant::now();
    while !line.is_closed() {
        tokio::select! {
            () = stored.notified() => {
                wake.work();
                untold = true;
            }
            () = wake.operations_untold() => ended_untold = true,
            () = tokio::time::sleep_until(quiet_until), if untold || ended_untold => {
                quiet_until = Instant::now() + SIGNAL_INTERVAL;
                if std::mem::take(&mut untold) && line.send().await.is_err() {
                    return;
                }
                if std::mem::take(&mut ended_untold) && line.send_ended().await.is_err() {
                    return;
                }
            }
            _ = look.tick() => {}
        }
    }
}
