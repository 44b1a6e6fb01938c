//! A primary that fails, is cut off or comes back, with two standbys on the same machine.
//!
//! Nodes are real processes that reach the primary through one address, a proxy. What was
//! acknowledged is known from the senders, what was called from a receiver, what was done from a
//! ledger without a conflict clause: none of them asks the database that may have forgotten it.
//! `docs/proof/failover.md` says what each test shows.

mod lost;
mod promoted;
mod quorum;
mod silent;
mod vanished;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::crash::{Sender, paid};
use crate::support::{
    AppBuilder, Node, OwnCluster, PgProxy, Replicas, TestApp, TestDb, until, until_some,
};

/// A sender is told within two seconds; the rest is for a machine that is busy with other tests.
const ANSWERED_WITHIN: Duration = Duration::from_secs(6);

/// Replicas with a migrated database, and the address where its primary is found.
struct Set {
    db: TestDb,
    proxy: PgProxy,
    replicas: Replicas,
}

impl Set {
    async fn synchronous() -> Self {
        Self::on(Replicas::synchronous().await).await
    }

    async fn asynchronous() -> Self {
        Self::on(Replicas::asynchronous().await).await
    }

    async fn on(replicas: Replicas) -> Self {
        let db = replicas.database().await;
        let proxy = PgProxy::start(&db.url).await;
        Self {
            db,
            proxy,
            replicas,
        }
    }

    /// A node that finds the primary by the proxy.
    async fn start(self, app: AppBuilder) -> (TestApp, PgProxy, Replicas) {
        let url = self.proxy.url(&self.db.name);
        let app = app.database_url(url).on(self.db).start().await;
        (app, self.proxy, self.replicas)
    }
}

/// What a failover manager does once the primary is dead. The address leads to the new primary
/// before that takes writes, as it may happen. Returns the new primary and its database.
async fn fail_over<'r>(
    replicas: &'r Replicas,
    proxy: &PgProxy,
    db: &TestDb,
) -> (&'r OwnCluster, TestDb) {
    let next = replicas.furthest().await;
    proxy.retarget(next.url());
    proxy.cut();
    let promoted = replicas.promote().await;
    assert_eq!(promoted.url(), next.url());
    (promoted, db.on_server(promoted.url()))
}

/// Sends events at once; expects 503 for each within the time that a sender waits.
async fn expect_refused(node: &Node, ids: &[&str]) {
    let start = Instant::now();
    let sender = Sender::to(node);
    let sent: Vec<_> = ids.iter().map(|id| sender.spawn(paid(id))).collect();
    for (id, answer) in ids.iter().zip(sent) {
        let answer = answer.await.unwrap();
        let said = node.output();
        assert_eq!(
            answer,
            Some((503, false)),
            "{id} must not be acknowledged: {said}"
        );
    }
    assert!(start.elapsed() < ANSWERED_WITHIN, "{:?}", start.elapsed());
}

/// Comes again as a provider does, until it is told 200; tells whether that was a replay.
async fn send_until_acknowledged(node: &Node, event: &Value) -> bool {
    let sender = Sender::to(node);
    let mut replayed = false;
    until("it is acknowledged", async || {
        match sender.send(event).await {
            Some((200, again)) => {
                replayed = again;
                true
            }
            Some((503, _)) | None => false,
            other => panic!("{other:?}"),
        }
    })
    .await;
    replayed
}

/// The backends of nodes whose COMMIT waits for a standby.
async fn waiting_for_standby(db: &TestDb) -> Vec<i32> {
    let waiting = "SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'SyncRep' AND query = 'COMMIT'";
    db.all(waiting).await
}

/// Waits until there is one, and returns it.
async fn until_waiting_for_standby(db: &TestDb) -> i32 {
    until_some("a commit waits for a standby", async || {
        waiting_for_standby(db).await.first().copied()
    })
    .await
}
