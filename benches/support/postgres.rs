//! A private PostgreSQL with durable settings, and what is asked of it between the legs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use oncehook::embedded::{Cluster, Options};
use oncehook::store::{Settings, migrate};
use tokio_postgres::{Client, NoTls};

/// What every leg writes to.
const TABLES: &str = "oncehook.event_key, oncehook.request, oncehook.event, oncehook.receipt, oncehook.delivery, \
     oncehook.outcome, oncehook.attempt, app.ledger";

/// The handler's side: one row per event, with the amount from the body. A plain insert: no
/// conflict clause hides a second booking.
const HANDLER: &str = "
CREATE SCHEMA app;
CREATE TABLE app.ledger (event_id uuid NOT NULL, amount bigint NOT NULL, booked_at timestamptz NOT NULL DEFAULT now());
CREATE FUNCTION app.book(event oncehook.delivered) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.ledger (event_id, amount)
  VALUES (event.id, (oncehook.body_json(event) #>> '{data,object,amount}')::bigint);
END $$";

/// Larger than the defaults, so that no leg is a test of a small cache; commits stay durable.
const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "30min"),
    ("autovacuum_naptime", "10s"),
];

/// How deliveries went, by the database's clock.
pub(crate) struct Handled {
    /// From the start of the leg to the last outcome.
    pub(crate) elapsed: Duration,
    /// From the start of the ingest transaction to the outcome: median and 99th percentile.
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// The server with a migrated database `bench`.
pub(crate) struct Postgres {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    pub(crate) pid: u32,
    pub(crate) source_id: i32,
    pub(crate) handler_id: i32,
}

impl Postgres {
    /// Starts one that is removed at the end. `statements` loads `pg_stat_statements`.
    pub(crate) async fn start(statements: bool) -> Result<Self> {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-postgresql");
        let mut settings: Vec<(String, String)> = SETTINGS
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        if statements {
            for (name, value) in [
                ("shared_preload_libraries", "pg_stat_statements"),
                ("pg_stat_statements.track", "all"),
                ("pg_stat_statements.track_planning", "on"),
            ] {
                settings.push((name.to_owned(), value.to_owned()));
            }
        }
        let options = Options {
            ephemeral: true,
            settings,
            ..Options::new(folder)
        };
        let mut cluster = tokio::task::spawn_blocking(move || Cluster::start(options)).await??;
        let pid = cluster.pid().context("PostgreSQL has ended")?;
        cluster.create_database("bench").await?;
        let url = cluster.url("bench");
        migrate::run(&Settings::parse(&url)?).await?;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(HANDLER).await?;
        client
            .batch_execute("SELECT oncehook.make_partitions(2)")
            .await?;
        let id = async |table: &str, columns: &str, values: &str| {
            let insert =
                format!("INSERT INTO oncehook.{table} ({columns}) VALUES ({values}) RETURNING id");
            anyhow::Ok(client.query_one(&insert, &[]).await?.get::<_, i32>(0))
        };
        // Ids that plain inserts may use; the node registers its own.
        let source_id = id("source", "name, first_name, recipe", "'plain', 'plain', ''").await?;
        let handler_id = id("handler", "name, first_name", "'plain', 'plain'").await?;
        Ok(Self {
            cluster,
            client,
            pid,
            source_id,
            handler_id,
        })
    }

    pub(crate) fn url(&self) -> String {
        self.cluster.url("bench")
    }

    /// Empties the tables and the write-ahead log, so that no leg pays for the one before.
    pub(crate) async fn reset(&self) -> Result<()> {
        self.client
            .batch_execute(&format!("TRUNCATE {TABLES}"))
            .await?;
        self.client.batch_execute("CHECKPOINT").await?;
        Ok(())
    }

    /// Seconds since 1970 by the database's clock.
    pub(crate) async fn now(&self) -> Result<f64> {
        let sql = "SELECT extract(epoch FROM clock_timestamp())::float8";
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }

    /// Fails unless a table has as many rows as were acknowledged.
    pub(crate) async fn expect_rows(&self, table: &str, expected: usize) -> Result<()> {
        let sql = format!("SELECT count(*) FROM {table}");
        let rows: i64 = self.client.query_one(&sql, &[]).await?.get(0);
        if i64::try_from(expected)? != rows {
            bail!("{table} has {rows} rows, {expected} were acknowledged");
        }
        Ok(())
    }

    /// Waits until no delivery is left.
    pub(crate) async fn until_handled(&self) -> Result<()> {
        let sql = "SELECT EXISTS (SELECT FROM oncehook.delivery)";
        while self.client.query_one(sql, &[]).await?.get(0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// How deliveries of requests received since went.
    pub(crate) async fn handled_since(&self, since: f64) -> Result<Handled> {
        let sql = "
            SELECT extract(epoch FROM max(o.finished_at))::float8 - $1,
                   percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM o.finished_at - r.received_at)::float8)
              FROM oncehook.outcome o
              JOIN oncehook.event e ON e.id = o.event_id
              JOIN oncehook.request r ON r.id = e.request_id
             WHERE r.received_at >= to_timestamp($1)";
        let row = self.client.query_one(sql, &[&since]).await?;
        let percentiles: Vec<f64> = row.get(1);
        let [p50, p99] = percentiles.as_slice() else {
            bail!("no outcome");
        };
        Ok(Handled {
            elapsed: Duration::from_secs_f64(row.get(0)),
            p50: Duration::from_secs_f64(*p50),
            p99: Duration::from_secs_f64(*p99),
        })
    }
}
