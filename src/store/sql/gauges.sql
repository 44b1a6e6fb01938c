-- gauges: numbers for the metrics.
-- Run by store::health::gauges every 15 s.
-- $1 known handler ids
SELECT (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(run_at)), 0)::float8 FROM oncehook.delivery
         WHERE state = 'ready' AND run_at <= now()) AS oldest_ready,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE state = 'ready' AND run_at <= now() LIMIT 100000) x) AS late,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE state = 'leased' AND lease_until < now() LIMIT 100000) x) AS stuck,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE handler_id <> ALL ($1::int[]) LIMIT 100000) x) AS unknown_handler,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0)::float8 FROM pg_stat_activity
         WHERE backend_xmin IS NOT NULL AND datname = current_database()) AS oldest_snapshot,
       (SELECT coalesce(n_dead_tup, 0) FROM pg_stat_user_tables WHERE relid = 'oncehook.delivery'::regclass) AS dead_rows,
       (SELECT count(*) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
         WHERE i.inhparent = 'oncehook.event'::regclass AND c.relname > 'event_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')) AS days_ahead
