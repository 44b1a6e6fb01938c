//! The yardstick: the same rows by plain inserts, one statement and one transaction per event.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::postgres::Postgres;
use super::stripe::Sender;

/// Where pgbench is: beside the server's programs, else on PATH; `None` when it is nowhere.
pub(crate) fn find(server: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(server.to_owned())
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join("pgbench"))
        .find(|program| program.is_file())
}

/// What pgbench said.
pub(crate) struct Inserted {
    pub(crate) per_second: f64,
    pub(crate) count: usize,
    /// Average time of a transaction.
    pub(crate) average: Duration,
}

/// Runs so many clients for so many seconds.
pub(crate) fn run(
    program: &Path,
    postgres: &Postgres,
    folder: &Path,
    clients: usize,
    seconds: u64,
) -> Result<Inserted> {
    let script = folder.join("insert.sql");
    fs::write(&script, statement(postgres.source_id, postgres.handler_id))?;
    let output = Command::new(program)
        .args(["-n", "-M", "prepared", "-j", "2"])
        .args(["-c", &clients.to_string(), "-T", &seconds.to_string()])
        .arg("-f")
        .arg(&script)
        .arg("-h")
        .arg(postgres.cluster.socket_dir())
        .args(["-U", "postgres", "bench"])
        .output()
        .context("run pgbench")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.lines().next().unwrap_or("pgbench failed"));
    }
    let after = |words: &str| -> Option<f64> {
        let (_, rest) = text.split_once(words)?;
        rest.split(['/', ' ', '\n']).next()?.parse().ok()
    };
    let number = |words: &str| after(words).with_context(|| format!("pgbench said {text}"));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of transactions"
    )]
    let count = number("actually processed: ")? as usize;
    Ok(Inserted {
        per_second: number("tps = ")?,
        count,
        average: Duration::from_secs_f64(number("latency average = ")? / 1_000.0),
    })
}

/// Key, request, event and delivery. Ids are the server's, everything else is constant.
fn statement(source_id: i32, handler_id: i32) -> String {
    let body = hex::encode(Sender::new().body());
    let headers = hex::encode(
        br#"[["content-type","application/json; charset=utf-8"],["stripe-signature","t=1764655200,v1=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"],["user-agent","Stripe/1.0 (+https://stripe.com/docs/webhooks)"]]"#,
    );
    let digest = "ab".repeat(32);
    format!(
        "WITH k AS (\
           INSERT INTO oncehook.event_key (source_id, key, event_id, raw_digest, canonical_digest, digest_rule, first_seen) \
           VALUES ({source_id}, 'evt_' || md5(random()::text), oncehook.uuid7(now()), '\\x{digest}', '\\x{digest}', 1, now()) \
           ON CONFLICT DO NOTHING RETURNING event_id, key), \
         r AS (\
           INSERT INTO oncehook.request (id, received_at, source_id, body, headers, method, path, peer, secret_label) \
           SELECT oncehook.uuid7(now()), now(), {source_id}, '\\x{body}'::bytea, '\\x{headers}'::bytea, 'POST', '/webhooks/stripe', \
                  '127.0.0.1', 'a' FROM k RETURNING id), \
         e AS (\
           INSERT INTO oncehook.event (id, request_id, item_offset, item_length, source_id, key, provider_id, type, entity, mode, \
                                       occurred_at, correlation_id, routes) \
           SELECT k.event_id, r.id, 0, 1024, {source_id}, k.key, k.key, 'payment_intent.succeeded', 'pi_1', 'live', now(), gen_random_uuid(), \
                  ARRAY[{handler_id}] FROM k, r) \
         INSERT INTO oncehook.delivery (event_id, handler_id) SELECT event_id, {handler_id} FROM k;\n"
    )
}
