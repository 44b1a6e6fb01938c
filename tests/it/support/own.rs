//! A PostgreSQL of its own, for tests that stop, kill or starve it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use oncehook::embedded::{Cluster, Options};

use super::database::TestDb;
use super::shared::{OWN_CONNECTIONS, shared};

/// A cluster that one test owns; removed when dropped or when the test process dies.
#[derive(Debug, Clone)]
pub(crate) struct OwnCluster {
    cluster: Arc<Mutex<Cluster>>,
    url: String,
}

impl OwnCluster {
    /// Starts one on a copy of the shared seed: well under a second.
    pub(crate) async fn start() -> Self {
        Self::with_settings(&[]).await
    }

    /// As [`OwnCluster::start`], with PostgreSQL settings such as `("max_connections", "20")`.
    pub(crate) async fn with_settings(settings: &[(&str, &str)]) -> Self {
        let seed = shared().await.seed().await;
        Self::copied(seed, settings).await
    }

    /// Starts one on a copy of a data folder.
    async fn copied(data: PathBuf, settings: &[(&str, &str)]) -> Self {
        let shared = shared().await;
        let options = Options {
            durable: false,
            ephemeral: true,
            connections_max: OWN_CONNECTIONS,
            copy_from: Some(data),
            settings: settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..Options::new(shared.own_folder())
        };
        let cluster = tokio::task::spawn_blocking(move || Cluster::start(options).unwrap())
            .await
            .unwrap();
        Self {
            url: cluster.url("postgres"),
            cluster: Arc::new(Mutex::new(cluster)),
        }
    }

    /// Starts a standby on the same data as [`OwnCluster::with_settings`]; `settings` say whom it follows.
    pub(crate) async fn standby(settings: &[(&str, &str)]) -> Self {
        let seed = shared().await.standby_seed().await;
        Self::copied(seed, settings).await
    }

    /// The URL of its maintenance database.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A migrated database on it.
    pub(crate) async fn database(&self) -> TestDb {
        TestDb::migrated_on(&self.url).await
    }

    /// Fast shutdown.
    pub(crate) async fn stop(&self) {
        self.with(|cluster| cluster.stop().unwrap()).await;
    }

    /// SIGKILL to every process of it.
    pub(crate) async fn kill(&self) {
        self.with(Cluster::kill).await;
    }

    /// As [`OwnCluster::kill`], where nothing can be awaited.
    pub(crate) fn kill_blocking(&self) {
        self.cluster.lock().unwrap().kill();
    }

    /// Starts it again on the same data and socket; stops it first if it runs.
    pub(crate) async fn restart(&self) {
        self.with(|cluster| cluster.restart().unwrap()).await;
    }

    /// Process id of the postmaster, if it runs.
    pub(crate) async fn pid(&self) -> Option<u32> {
        self.with(Cluster::pid).await
    }

    /// The folder of its Unix socket, for `PgProxy`.
    pub(crate) async fn socket_dir(&self) -> PathBuf {
        self.with(|cluster| cluster.socket_dir()).await
    }

    async fn with<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut Cluster) -> T + Send + 'static,
    ) -> T {
        let cluster = Arc::clone(&self.cluster);
        tokio::task::spawn_blocking(move || action(&mut cluster.lock().unwrap()))
            .await
            .unwrap()
    }
}
