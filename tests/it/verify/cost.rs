//! What a verification costs over many events; and that it finds nothing in them.
//!
//! `just verify-cost`, or
//! `cargo test --test it -- --ignored --exact verify::cost::over_a_million_events --nocapture`.
//! `ONCEHOOK_VERIFY_EVENTS` says how many events there are: 1,000,000 unless it is set.

use std::env;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use oncehook::store::verify::VerifyOptions;

use crate::support::{OwnCluster, TestDb};

use super::findings;

const RUNS: usize = 3;

/// Days before yesterday, which no node makes any more.
const EARLIER_DAYS: &str = "
SELECT oncehook.make_partitions(3);
DO $$
DECLARE
  today date := (now() AT TIME ZONE 'UTC')::date;
  parent text;
  starts timestamptz;
  bounds text[];
BEGIN
  FOREACH parent IN ARRAY ARRAY['request', 'event', 'outcome', 'receipt', 'attempt'] LOOP
    FOR day IN -6 .. -2 LOOP
      starts := (today + day)::timestamp AT TIME ZONE 'UTC';
      bounds := ARRAY[starts::text, (starts + interval '1 day')::text];
      IF parent NOT IN ('receipt', 'attempt') THEN
        bounds := ARRAY[oncehook.uuid7_floor(starts)::text, oncehook.uuid7_floor(starts + interval '1 day')::text];
      END IF;
      EXECUTE format('CREATE TABLE oncehook.%I PARTITION OF oncehook.%I FOR VALUES FROM (%L) TO (%L)',
                     parent || '_' || to_char(today + day, 'YYYYMMDD'), parent, bounds[1], bounds[2]);
    END LOOP;
  END LOOP;
END $$";

/// Events of two handlers, evenly over the last five days, with bodies of 1 KB. Of each thousand one
/// is live, 20 failed once and 100 were sent twice.
const EVENTS: &str = "
INSERT INTO oncehook.source (name, first_name, recipe) VALUES ('stripe', 'stripe', 'x');
INSERT INTO oncehook.handler (name, first_name) VALUES ('ledger', 'ledger'), ('mail', 'mail');
CREATE UNLOGGED TABLE public.given AS
SELECT n, at, oncehook.uuid7(at) AS id, oncehook.uuid7(at) AS request_id,
       convert_to('{\"id\":\"evt_' || n || '\",\"data\":\"' || repeat(md5(n::text), 31) || '\"}', 'UTF8') AS body
  FROM (SELECT n, now() - interval '5 days' + interval '5 days' / :events * (n - 1) AS at FROM generate_series(1, :events) n) g;
INSERT INTO oncehook.request SELECT request_id, at, 1, body, '[]', 'POST', '/webhooks/stripe', NULL, NULL, 'a' FROM public.given;
INSERT INTO oncehook.event
SELECT id, request_id, 0, octet_length(body), 1, 'evt_' || n, 'evt_' || n, (ARRAY['charge.succeeded', 'charge.failed', 'invoice.paid'])[n % 3 + 1],
       'ch_' || n, NULL, 'live', at, gen_random_uuid(), NULL, NULL, ARRAY[1, 2] FROM public.given;
INSERT INTO oncehook.event_key SELECT 1, 'evt_' || n, id, sha256(body), sha256(body), 1, at FROM public.given;
INSERT INTO oncehook.attempt SELECT id, 1, 1, gen_random_uuid(), at, at + interval '1 s', 'retry', 'not now' FROM public.given WHERE n % 50 = 0;
INSERT INTO oncehook.outcome SELECT id, h, 1, 0, 'succeeded', 'handler', NULL, NULL, 1 + (h = 1 AND n % 50 = 0)::int, at + interval '2 s'
  FROM public.given, generate_series(1, 2) h WHERE n % 1000 > 0;
INSERT INTO oncehook.delivery (event_id, handler_id, failures, first_try_at) SELECT id, h, (h = 1 AND n % 50 = 0)::int, at
  FROM public.given, generate_series(1, 2) h WHERE n % 1000 = 0;
INSERT INTO oncehook.receipt SELECT id, at + interval '3 s', 1, 'a' FROM public.given WHERE n % 10 = 0;
DROP TABLE public.given";

/// Fills a database with so many events over the last five days.
pub(crate) async fn fill(db: &TestDb, events: &str) {
    db.execute(EARLIER_DAYS).await;
    db.execute(&EVENTS.replace(":events", events)).await;
}

#[tokio::test]
#[ignore = "long: just verify-cost"]
async fn over_a_million_events() {
    let events = env::var("ONCEHOOK_VERIFY_EVENTS").unwrap_or("1000000".into());
    let settings = [("shared_buffers", "512MB"), ("max_wal_size", "4GB")];
    let cluster = OwnCluster::with_settings(&settings).await;
    let db = cluster.database().await;
    let began = Instant::now();
    fill(&db, &events).await;
    db.execute("VACUUM ANALYZE").await;
    let size: String = db
        .one("SELECT pg_size_pretty(pg_database_size(current_database()))")
        .await;
    eprintln!("{events} events, {size}, made in {:?}", began.elapsed());

    let everything = VerifyOptions::everything();
    let windows = [
        ("--since 1h", since(SignedDuration::from_hours(1))),
        ("two days (default)", VerifyOptions::default()),
        (
            "--all",
            VerifyOptions {
                digests: false,
                ..everything.clone()
            },
        ),
        ("--all --digests", everything),
    ];
    eprintln!(
        "| window | events read | takes | of this the longest check |\n| --- | --- | --- | --- |"
    );
    for (name, options) in windows {
        eprintln!("| {name} | {} |", measured(&db, &options).await);
    }
}

fn since(age: SignedDuration) -> VerifyOptions {
    VerifyOptions {
        since: Timestamp::now() - age,
        ..VerifyOptions::default()
    }
}

/// Events read, shortest and longest time, the longest check of the last run.
async fn measured(db: &TestDb, options: &VerifyOptions) -> String {
    let options = VerifyOptions {
        check_time: Duration::ZERO,
        ..options.clone()
    };
    let mut times = Vec::new();
    let mut last = (0, String::new());
    for _ in 0..RUNS {
        let began = Instant::now();
        let verification = db.verify_with(&options).await;
        times.push(began.elapsed().as_secs_f64());
        assert_eq!(findings(&verification), [], "{verification}");
        let checks = || verification.checks.iter();
        let longest = checks().max_by_key(|check| check.took_ms).unwrap();
        let read = checks().find(|check| check.counted == "events").unwrap();
        last = (
            read.examined.unwrap_or_default(),
            format!("`{}`, {} ms", longest.check, longest.took_ms),
        );
    }
    times.sort_by(f64::total_cmp);
    let (read, longest) = last;
    format!(
        "{read} | {:.1} to {:.1} s | {longest}",
        times[0],
        times[RUNS - 1]
    )
}
