//! How often each statement runs per 1,000 events: a query per item shows at once.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::legs::Legs;
use super::load::as_f64;

const EVENTS: usize = 20_000;
const CONNECTIONS: usize = 64;
const IDLE: Duration = Duration::from_secs(5);

const CALLS: &str = "
    SELECT toplevel, calls, total_plan_time, total_exec_time, rows, left(regexp_replace(regexp_replace(query, '^(--[^\\n]*\\n)+', ''), '\\s+', ' ', 'g'), 90)
      FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%' AND userid > 0
     ORDER BY toplevel DESC, total_plan_time + total_exec_time DESC LIMIT 40";

/// Sends events with the handler at work, then nothing for a while, and prints both counts.
pub(crate) async fn print(legs: &mut Legs) -> Result<()> {
    let client = &legs.postgres.client;
    client
        .batch_execute("CREATE EXTENSION pg_stat_statements")
        .await
        .context("pg_stat_statements is needed (Debian: postgresql-contrib)")?;
    let node = legs.node("session", true).await?;
    legs.exactly(&node, CONNECTIONS, 1_000).await?;
    legs.postgres
        .client
        .batch_execute("SELECT pg_stat_statements_reset()")
        .await?;
    legs.exactly(&node, CONNECTIONS, EVENTS).await?;
    println!("per 1,000 events ({EVENTS} events, {CONNECTIONS} connections)");
    println!("   calls  plan ms   run ms     rows  statement (inner ones indented)");
    dump(legs, as_f64(EVENTS) / 1_000.0).await?;

    legs.postgres
        .client
        .batch_execute("SELECT pg_stat_statements_reset()")
        .await?;
    let before = super::cpu::of_process(node.pid());
    tokio::time::sleep(IDLE).await;
    let after = super::cpu::of_process(node.pid());
    println!("\nper second, idle for {} s", IDLE.as_secs());
    dump(legs, IDLE.as_secs_f64()).await?;
    if let (Some(before), Some(after)) = (before, after) {
        let spent = after.saturating_sub(before).as_secs_f64() / IDLE.as_secs_f64();
        println!("processor time of the idle node: {:.2} %", spent * 100.0);
    }
    node.stop()
}

async fn dump(legs: &Legs, per: f64) -> Result<()> {
    for row in legs.postgres.client.query(CALLS, &[]).await? {
        let calls: i64 = row.get(1);
        let rows: i64 = row.get(4);
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        let (calls, rows) = (calls as f64 / per, rows as f64 / per);
        let (plan, run): (f64, f64) = (row.get(2), row.get(3));
        let indent = if row.get(0) { "" } else { "    " };
        let text: &str = row.get(5);
        println!(
            "{calls:>8.1} {:>8.2} {:>8.2} {rows:>8.0}  {indent}{text}",
            plan / per,
            run / per
        );
    }
    Ok(())
}
