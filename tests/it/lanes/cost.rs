//! What a lane costs that a million deliveries wait in.
//!
//! `just lane-cost`, or `cargo test --release --test it -- --ignored --exact lanes::cost::behind_two_lanes --nocapture`.
//! `ONCEHOOK_LANE_BLOCKED`: how many wait (1,000,000).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::TestDb;
use crate::support::inbox::{Inbox, dispatch, stripe_source};
use crate::support::until;

use super::{LINES, about, lines};

/// Events sent and handled per round.
const ROUND: usize = 400;

/// Sends a round of events of other lanes, one by one, and waits until they are handled: median
/// time of an acknowledgement, and time of the whole.
async fn round(inbox: &Inbox, name: &str) -> (Duration, Duration) {
    let began = Instant::now();
    let mut took = Vec::new();
    for n in 0..ROUND {
        let sent = Instant::now();
        // Of each third, the first try would fail: not here.
        inbox.put(&about(&format!("{name}_{n}"), 1)).await;
        took.push(sent.elapsed());
    }
    until("the round is handled", async || {
        let left: i64 = inbox
            .db
            .one("SELECT count(*) FROM oncehook.delivery WHERE state <> 'blocked' AND lane NOT LIKE 'hot_%'")
            .await;
        left == 0
    })
    .await;
    took.sort_unstable();
    (took[took.len() / 2], began.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: just lane-cost"]
async fn behind_two_lanes() {
    let blocked: i64 =
        std::env::var("ONCEHOOK_LANE_BLOCKED").map_or(1_000_000, |n| n.parse().unwrap());
    let db = Arc::new(TestDb::new().await);
    db.execute(LINES).await;
    let inbox = Inbox::on(
        Arc::clone(&db),
        vec![stripe_source()],
        vec![lines()],
        Some(dispatch()),
    )
    .await;
    round(&inbox, "warm").await;
    let (ack, whole) = round(&inbox, "before").await;
    eprintln!("none waits: acknowledged after {ack:?} (median), {ROUND} handled after {whole:?}");

    let client = db.client().await;
    // Two heads that are not due, and all others behind them.
    let handler: i32 = db.one("SELECT id FROM oncehook.handler").await;
    db.execute(&format!(
        "INSERT INTO oncehook.delivery (event_id, handler_id, state, lane, lane_seq, run_at)
         SELECT oncehook.uuid7(now()), {handler}, CASE WHEN n <= 2 THEN 'ready' ELSE 'blocked' END, 'hot_' || n % 2,
                nextval('oncehook.lane_seq'), CASE WHEN n <= 2 THEN now() + interval '1 day' ELSE now() END
           FROM generate_series(1, {blocked}) n"
    ))
    .await;
    client
        .batch_execute("VACUUM ANALYZE oncehook.delivery; CHECKPOINT")
        .await
        .unwrap();
    let (ack_behind, whole_behind) = round(&inbox, "behind").await;
    eprintln!(
        "{blocked} wait in two lanes: acknowledged after {ack_behind:?} ({:.2}), {ROUND} handled after {whole_behind:?} ({:.2})",
        ack_behind.as_secs_f64() / ack.as_secs_f64(),
        whole_behind.as_secs_f64() / whole.as_secs_f64(),
    );

    for (what, sql) in [
        (
            "claim of 50",
            "SELECT ctid FROM oncehook.delivery WHERE state = 'ready' AND NOT suspect AND handler_id = 1 AND run_at <= now() ORDER BY run_at LIMIT 50 FOR UPDATE SKIP LOCKED",
        ),
        (
            "look at both lanes",
            include_str!("../../../src/store/sql/lane_promote.sql"),
        ),
        (
            "search for lanes without a head",
            include_str!("../../../src/store/sql/lane_headless.sql"),
        ),
    ] {
        let mut times = Vec::new();
        for _ in 0..20 {
            client
                .batch_execute("BEGIN; SET LOCAL enable_seqscan = off")
                .await
                .unwrap();
            let statement = client.prepare(sql).await.unwrap();
            let hot = (vec![handler, handler], vec!["hot_0", "hot_1"]);
            let began = Instant::now();
            match statement.params().len() {
                0 => client.query(&statement, &[]).await.unwrap(),
                3 => {
                    let all = client.query(&statement, &[&0, &"", &10_000]);
                    all.await.unwrap()
                }
                _ => client.query(&statement, &[&hot.0, &hot.1]).await.unwrap(),
            };
            times.push(began.elapsed());
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        times.sort_unstable();
        eprintln!("{what}: {:?} (median of 20)", times[10]);
    }

    // The hot lanes work: one head after the other is ended and the next promoted.
    let promotions: u32 = 20_000;
    let began = Instant::now();
    client
        .batch_execute(&format!(
            "DO $$ DECLARE h record; BEGIN
               FOR i IN 1..{promotions} LOOP
                 DELETE FROM oncehook.delivery WHERE handler_id = {handler} AND lane = 'hot_0' AND state <> 'blocked';
                 UPDATE oncehook.delivery SET state = 'ready', run_at = now() + interval '1 day' WHERE ctid = ANY (ARRAY(
                   SELECT ctid FROM oncehook.delivery WHERE handler_id = {handler} AND lane = 'hot_0' AND state = 'blocked' ORDER BY lane_seq LIMIT 1 FOR UPDATE));
                 COMMIT;
               END LOOP;
             END $$"
        ))
        .await
        .unwrap();
    eprintln!(
        "{promotions} heads of one lane ended and followed: {:?} each",
        began.elapsed() / promotions
    );
}
