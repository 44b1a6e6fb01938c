//! A fresh database per test, cloned from a template that is made once per cluster and content.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use oncehook::store::verify::{Verification, VerifyOptions};
use oncehook::store::{Settings, Store, migrate};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Error, NoTls, Row};

use super::shared::shared;
use super::wait::until_some;

/// Opens a connection that serves itself in the background.
pub(crate) async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // It ends when the client is dropped; a lost server shows in the client's own errors.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// The process id of a connection's backend.
pub(crate) async fn backend_pid(client: &Client) -> i32 {
    let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
    row.unwrap().get(0)
}

/// One test's database. Dropped with it, whoever is still connected.
#[derive(Debug)]
pub(crate) struct TestDb {
    /// What `database.url` of a node is set to.
    pub(crate) url: String,
    /// Its name.
    pub(crate) name: String,
    maintenance: String,
    /// For the helpers below; opened at first use and again after a loss.
    client: Mutex<Option<Arc<Client>>>,
}

impl TestDb {
    /// A migrated database on the shared cluster: some tens of milliseconds.
    pub(crate) async fn new() -> Self {
        Self::migrated_on(shared().await.url()).await
    }

    /// An empty database on the shared cluster, for tests of the migrations themselves.
    pub(crate) async fn blank() -> Self {
        Self::blank_on(shared().await.url()).await
    }

    /// An empty database on any cluster, given by the URL of its maintenance database.
    pub(crate) async fn blank_on(maintenance: &str) -> Self {
        Self::create(maintenance, None).await
    }

    /// A migrated database on any cluster, given by the URL of its maintenance database.
    pub(crate) async fn migrated_on(maintenance: &str) -> Self {
        let key = migrations_digest();
        Self::from_template(maintenance, &key, async |url| {
            let settings = Settings::parse(&url).unwrap();
            migrate::run(&settings).await.unwrap();
        })
        .await
    }

    /// A clone of the template known by `key`, which `build` fills when it is not there yet.
    /// The same key must always stand for the same content.
    pub(crate) async fn from_template(
        maintenance: &str,
        key: &str,
        build: impl AsyncFnOnce(String),
    ) -> Self {
        let template = format!("template_{key}");
        ensure_template(maintenance, &template, build).await;
        Self::create(maintenance, Some(&template)).await
    }

    /// A migrated database of another encoding, on the shared cluster.
    pub(crate) async fn encoded(encoding: &str) -> Self {
        let shared = shared().await;
        let template = format!("template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'");
        let db = Self::create(shared.url(), Some(&template)).await;
        let settings = Settings::parse(&db.url).unwrap();
        migrate::run(&settings).await.unwrap();
        db
    }

    /// A new role, which is dropped with the database. Roles are of the whole cluster: this one has
    /// the database's name behind its own.
    pub(crate) async fn role(&self, word: &str, options: &str) -> String {
        let role = format!("{word}_{}", self.name);
        self.execute(&format!("CREATE ROLE {role} {options}")).await;
        role
    }

    /// A copy of this database as it is, from which everybody is disconnected.
    pub(crate) async fn copy(&self) -> Self {
        drop(self.client.lock().await.take());
        self.disconnect_all().await;
        let admin = connect(&self.maintenance).await.unwrap();
        let left = "SELECT pid FROM pg_stat_activity WHERE datname = $1";
        until_some("the database is left alone", async || {
            let left = admin.query(left, &[&self.name]).await.unwrap();
            left.is_empty().then_some(())
        })
        .await;
        Self::create(&self.maintenance, Some(&self.name)).await
    }

    async fn create(maintenance: &str, template: Option<&str>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("t_{}_{next}", std::process::id());
        let admin = connect(maintenance).await.unwrap();
        // A process killed long ago may have had our id.
        drop_database(&admin, &name).await.unwrap();
        let template = template.map_or(String::new(), |template| format!(" TEMPLATE {template}"));
        admin
            .batch_execute(&format!("CREATE DATABASE {name}{template}"))
            .await
            .unwrap();
        Self {
            url: with_database(maintenance, &name),
            name,
            maintenance: maintenance.to_owned(),
            client: Mutex::new(None),
        }
    }

    /// The same database as another server has it, such as a standby.
    pub(crate) fn on_server(&self, maintenance: &str) -> Self {
        Self {
            url: with_database(maintenance, &self.name),
            name: self.name.clone(),
            maintenance: maintenance.to_owned(),
            client: Mutex::new(None),
        }
    }

    /// A new connection.
    pub(crate) async fn client(&self) -> Client {
        connect(&self.url).await.unwrap()
    }

    async fn helper(&self) -> Arc<Client> {
        let mut held = self.client.lock().await;
        match &*held {
            Some(client) if !client.is_closed() => Arc::clone(client),
            _ => {
                let client = Arc::new(self.client().await);
                *held = Some(Arc::clone(&client));
                client
            }
        }
    }

    /// Rows of a table of schema `oncehook`, or of `schema.table`; `WHERE ..` may follow.
    pub(crate) async fn count(&self, table: &str) -> i64 {
        let name = table.split_whitespace().next().unwrap_or("");
        let schema = if name.contains('.') { "" } else { "oncehook." };
        self.one(&format!("SELECT count(*) FROM {schema}{table}"))
            .await
    }

    /// Runs statements.
    pub(crate) async fn execute(&self, sql: &str) {
        self.helper().await.batch_execute(sql).await.unwrap();
    }

    /// The rows of a query.
    pub(crate) async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.helper().await.query(sql, params).await.unwrap()
    }

    /// The first column of the only row.
    pub(crate) async fn one<T: FromSqlOwned>(&self, sql: &str) -> T {
        self.helper()
            .await
            .query_one(sql, &[])
            .await
            .unwrap()
            .get(0)
    }

    /// The first column of every row.
    pub(crate) async fn all<T: FromSqlOwned>(&self, sql: &str) -> Vec<T> {
        let rows = self.rows(sql, &[]).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Runs statements outside of this database (`ALTER DATABASE ..`, `pg_terminate_backend`).
    pub(crate) async fn execute_outside(&self, sql: &str) {
        let admin = connect(&self.maintenance).await.unwrap();
        admin.batch_execute(sql).await.unwrap();
    }

    /// Ends every connection to this database.
    pub(crate) async fn disconnect_all(&self) {
        let name = &self.name;
        self.execute_outside(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        ))
        .await;
    }

    /// Checks every invariant over all that is stored, bytes included, as `oncehook verify` does;
    /// fails with what is broken or was not checked. Nodes may be at work. Returns the warnings too.
    pub(crate) async fn verify(&self) -> Verification {
        self.verified()
            .await
            .unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same for those who have more to say; an error is what [`TestDb::verify`] fails with.
    pub(crate) async fn verified(&self) -> Result<Verification, String> {
        let options = VerifyOptions {
            check_time: Duration::from_mins(10),
            ..VerifyOptions::everything()
        };
        let verification = self.verify_with(&options).await;
        if verification.holds {
            return Ok(verification);
        }
        Err(format!(
            "`oncehook verify` of {}:\n{verification}",
            self.name
        ))
    }

    /// What a verification with these options finds.
    pub(crate) async fn verify_with(&self, options: &VerifyOptions) -> Verification {
        let store = Store::new(Settings::parse(&self.url).unwrap(), 1).unwrap();
        store.verify(options).await.unwrap()
    }

    /// Waits until somebody waits for a lock that this backend holds; returns who.
    pub(crate) async fn until_blocked_by(&self, pid: i32) -> i32 {
        let what = format!("nobody waits for backend {pid}");
        let sql = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid)) LIMIT 1";
        until_some(&what, async || {
            let rows = self.rows(sql, &[&pid]).await;
            rows.first().map(|row| row.get(0))
        })
        .await
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        let (maintenance, name) = (self.maintenance.clone(), self.name.clone());
        // In its own thread, since the test's runtime may be the one that drops us. Errors are
        // passed over: a stopped cluster is removed as a whole.
        let dropped = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                if let Ok(admin) = connect(&maintenance).await {
                    // Not even for a standby that a test has taken away.
                    drop(admin.batch_execute("SET synchronous_commit = off").await);
                    drop(drop_database(&admin, &name).await);
                }
            });
            Ok::<(), std::io::Error>(())
        });
        drop(dropped.join());
    }
}

/// And the roles of [`TestDb::role`].
async fn drop_database(admin: &Client, name: &str) -> Result<(), Error> {
    admin
        .batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        .await?;
    let roles =
        "SELECT rolname::text FROM pg_roles WHERE right(rolname, length($1) + 1) = '_' || $1";
    for role in admin.query(roles, &[&name]).await? {
        let role: &str = role.get(0);
        admin
            .batch_execute(&format!("DROP ROLE IF EXISTS {role}"))
            .await?;
    }
    Ok(())
}

/// Makes the template unless it is there. `is_template` is set last and says it is whole; a
/// session lock lets one builder at it, in whatever process.
async fn ensure_template(maintenance: &str, template: &str, build: impl AsyncFnOnce(String)) {
    let admin = connect(maintenance).await.unwrap();
    if is_whole(&admin, template).await {
        return;
    }
    let lock = format!("SELECT pg_advisory_lock(hashtext('{template}'))");
    admin.batch_execute(&lock).await.unwrap();
    if is_whole(&admin, template).await {
        return;
    }
    drop_database(&admin, template).await.unwrap();
    let make = format!("CREATE DATABASE {template}");
    admin.batch_execute(&make).await.unwrap();
    build(with_database(maintenance, template)).await;
    // Nobody can connect any more, so nobody blocks a clone; who still is connected leaves.
    admin
        .batch_execute(&format!(
            "ALTER DATABASE {template} WITH ALLOW_CONNECTIONS false"
        ))
        .await
        .unwrap();
    let leave = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
    until_some("the template is left alone", async || {
        let left = admin.query(leave, &[&template]).await.unwrap();
        left.is_empty().then_some(())
    })
    .await;
    admin
        .batch_execute(&format!("ALTER DATABASE {template} WITH IS_TEMPLATE true"))
        .await
        .unwrap();
}

async fn is_whole(admin: &Client, template: &str) -> bool {
    let sql = "SELECT 1 FROM pg_database WHERE datname = $1 AND datistemplate";
    let found = admin.query_opt(sql, &[&template]).await;
    found.unwrap().is_some()
}

/// The same cluster, another database.
pub(crate) fn with_database(url: &str, name: &str) -> String {
    let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
    let base = address.rsplit_once('/').unwrap().0;
    format!("{base}/{name}?{parameters}")
}

/// Names the content of the migrations folder.
fn migrations_digest() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/migrations");
    let mut files: Vec<_> = fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    let mut digest = Sha256::new();
    for file in files.iter().filter(|file| file.is_file()) {
        digest.update(file.as_os_str().as_encoded_bytes());
        digest.update(fs::read(file).unwrap());
    }
    hex::encode(digest.finalize())[..16].to_owned()
}
