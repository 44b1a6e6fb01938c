//! A primary and two standbys on one machine, with a network between them that can be cut.

use tokio_postgres::Client;

use super::database::{TestDb, connect};
use super::own::OwnCluster;
use super::proxy::PgProxy;
use super::wait::until;

/// A standby that lost its primary looks for it again soon; one that was away finds what it missed.
const SETTINGS: [(&str, &str); 2] = [
    ("wal_retrieve_retry_interval", "50ms"),
    ("wal_keep_size", "256MB"),
];

/// How many standbys have replayed all that is written, in the primary's words.
const CAUGHT_UP: &str = "SELECT count(*) FROM pg_stat_replication
    WHERE state = 'streaming' AND replay_lsn >= pg_current_wal_lsn()";

/// A primary and the standbys `standby_0` and `standby_1`, which stream from it. Removed when
/// dropped or when the test process dies.
#[derive(Debug)]
pub(crate) struct Replicas {
    pub(crate) primary: OwnCluster,
    standbys: Vec<Standby>,
}

#[derive(Debug)]
struct Standby {
    cluster: OwnCluster,
    /// Between it and the server it follows.
    link: PgProxy,
}

impl Replicas {
    /// A commit waits until one standby, whichever, has it on disk; also on the one promoted.
    pub(crate) async fn synchronous() -> Self {
        Self::start("ANY 1 (standby_0, standby_1)").await
    }

    /// A commit waits for nobody.
    pub(crate) async fn asynchronous() -> Self {
        Self::start("").await
    }

    /// Starts all three; returns when both standbys stream.
    async fn start(synchronous: &str) -> Self {
        let settings = [&SETTINGS[..], &[("synchronous_standby_names", synchronous)]].concat();
        let primary = OwnCluster::with_settings(&settings).await;
        let (first, second) = tokio::join!(
            Standby::of(&primary, 0, &settings),
            Standby::of(&primary, 1, &settings)
        );
        let replicas = Self {
            primary,
            standbys: vec![first, second],
        };
        replicas.until_caught_up().await;
        replicas
    }

    /// A migrated database on the primary.
    pub(crate) async fn database(&self) -> TestDb {
        self.primary.database().await
    }

    /// Waits until both standbys have replayed all that the primary has written.
    pub(crate) async fn until_caught_up(&self) {
        let primary = connect(self.primary.url()).await.unwrap();
        until("both standbys have replayed everything", async || {
            count(&primary, CAUGHT_UP).await == 2
        })
        .await;
    }

    /// Cuts the standbys off the server they follow: what it writes from now on, they never get.
    pub(crate) fn cut_links(&self) {
        for standby in &self.standbys {
            standby.link.refuse();
        }
    }

    /// Ends [`Replicas::cut_links`].
    pub(crate) fn mend_links(&self) {
        for standby in &self.standbys {
            standby.link.admit();
        }
    }

    /// The standby with most of the primary's log: the one to promote.
    pub(crate) async fn furthest(&self) -> &OwnCluster {
        &self.standbys[self.furthest_index().await].cluster
    }

    /// Promotes the standby with most of the log and lets the other one follow it.
    pub(crate) async fn promote(&self) -> &OwnCluster {
        let index = self.furthest_index().await;
        let (promoted, follower) = (&self.standbys[index], &self.standbys[1 - index]);
        follower.link.retarget(promoted.cluster.url());
        follower.link.cut();
        follower.link.admit();
        let client = connect(promoted.cluster.url()).await.unwrap();
        let row = client.query_one("SELECT pg_promote()", &[]).await.unwrap();
        assert!(row.get::<_, bool>(0), "promoted within its time");
        &promoted.cluster
    }

    async fn furthest_index(&self) -> usize {
        let mut received = Vec::new();
        for standby in &self.standbys {
            let client = connect(standby.cluster.url()).await.unwrap();
            let sql = "SELECT (pg_last_wal_receive_lsn() - '0/0')::bigint";
            received.push(count(&client, sql).await);
        }
        usize::from(received[1] > received[0])
    }

    /// The URLs of the maintenance databases of all three, a standby first.
    pub(crate) fn urls(&self) -> [&str; 3] {
        let [first, second] = [0, 1].map(|index| self.standbys[index].cluster.url());
        [first, self.primary.url(), second]
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        // A shutdown in good order would wait for standbys, over links that nobody serves now.
        for standby in &self.standbys {
            standby.cluster.kill_blocking();
        }
        self.primary.kill_blocking();
    }
}

impl Standby {
    async fn of(primary: &OwnCluster, number: usize, settings: &[(&str, &str)]) -> Self {
        let link = PgProxy::start(primary.url()).await;
        let address = link.address();
        let follows = format!(
            "host={} port={} user=postgres sslmode=disable application_name=standby_{number}",
            address.ip(),
            address.port()
        );
        let settings = [settings, &[("primary_conninfo", follows.as_str())]].concat();
        Self {
            cluster: OwnCluster::standby(&settings).await,
            link,
        }
    }
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}
