//! Where the soak runs: a durable PostgreSQL whose day ends while the load is on.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncehook::embedded::{Cluster, Options as ClusterOptions};

use super::Options;
use crate::support::TestDb;
use crate::support::{clock, signer};

/// As for the benchmark: no test of a small cache. Autovacuum looks often, since a run is short.
const SETTINGS: [(&str, &str); 6] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "5min"),
    ("autovacuum_naptime", "10s"),
    ("shared_preload_libraries", "pg_stat_statements"),
    ("pg_stat_statements.track", "top"),
];

const DAY_S: i64 = 24 * 60 * 60;

pub(super) struct Place {
    /// Logs, samples and the report.
    pub(super) folder: PathBuf,
    pub(super) version: (u32, u32),
    /// What the database's clock is ahead of the machine's; `None` where it cannot be.
    pub(super) ahead_s: Option<i64>,
    url: String,
    /// Stops with it.
    _cluster: Cluster,
}

impl Place {
    /// Starts PostgreSQL with a clock on which midnight (UTC) comes in so long a time.
    pub(super) async fn make(options: &Options, midnight_in: Duration) -> Self {
        let folder = options.out.clone();
        fs::create_dir_all(&folder).unwrap();
        for log in ["sent.jsonl", "applied.jsonl", "samples.jsonl"] {
            // Appended to, so an older run's goes first.
            fs::remove_file(folder.join(log)).ok();
        }
        let data = folder.join("postgresql");
        oncehook::embedded::wipe(&data).unwrap();
        let bin = folder.join("bin");
        let (cluster, ahead_s) =
            tokio::task::spawn_blocking(move || start(&data, &bin, midnight_in))
                .await
                .unwrap();
        Self {
            folder,
            version: cluster.binaries().version(),
            ahead_s,
            url: cluster.url("postgres"),
            _cluster: cluster,
        }
    }

    pub(super) async fn database(&self) -> TestDb {
        let db = TestDb::migrated_on(&self.url).await;
        db.execute("CREATE EXTENSION pg_stat_statements").await;
        db
    }

    /// The largest tables with their indexes, for people.
    pub(super) async fn sizes(&self, db: &TestDb) -> String {
        let rows = db
            .rows(
                "SELECT coalesce(p.relname, c.relname)::text, sum(pg_table_size(c.oid))::bigint >> 20, sum(pg_indexes_size(c.oid))::bigint >> 20
                   FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                   LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
                  WHERE n.nspname IN ('oncehook', 'app') AND c.relkind = 'r'
                  GROUP BY 1 ORDER BY 2 DESC LIMIT 9",
                &[],
            )
            .await;
        let mut sizes = String::new();
        for row in rows {
            let (name, table, indexes): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
            writeln!(sizes, "| `{name}` | {table} | {indexes} |").unwrap();
        }
        sizes
    }
}

fn start(data: &Path, bin: &Path, midnight_in: Duration) -> (Cluster, Option<i64>) {
    let options = ClusterOptions {
        ephemeral: true,
        settings: SETTINGS
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        ..ClusterOptions::new(data)
    };
    let Some(library) = clock::ahead(bin) else {
        return (Cluster::start(options).unwrap(), None);
    };
    // Once as it is, to make the folder and to learn where PostgreSQL's programs are.
    let kept = ClusterOptions {
        ephemeral: false,
        ..options.clone()
    };
    let mut cluster = Cluster::start(kept).unwrap();
    let programs = cluster.binaries().dir().to_owned();
    cluster.stop().unwrap();
    drop(cluster);
    let then_s = signer::now_s() + i64::try_from(midnight_in.as_secs()).unwrap();
    let ahead_s = DAY_S - then_s % DAY_S;
    wrap(bin, &programs, &library, ahead_s);
    let mut search = options.search.clone();
    search.chosen = Some(bin.to_owned());
    let cluster = Cluster::start(ClusterOptions { search, ..options }).unwrap();
    (cluster, Some(ahead_s))
}

/// Programs that run PostgreSQL's under another clock.
fn wrap(bin: &Path, programs: &Path, library: &Path, ahead_s: i64) {
    fs::create_dir_all(bin).unwrap();
    for program in ["postgres", "initdb", "pg_ctl", "pg_controldata"] {
        let real = programs.join(program);
        let path = bin.join(program);
        let text = format!(
            "#!/bin/sh\nexport LD_PRELOAD={} ONCEHOOK_CLOCK_AHEAD={ahead_s}\nexec {} \"$@\"\n",
            library.display(),
            real.display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}
