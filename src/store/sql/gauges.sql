-- gauges: numbers for the metrics.
-- Run by store::health::gauges every 15 s.
-- $1 known handler ids  $2 ids of the sources for whose emitted events this node is one to store them; where it has none, it
-- misses none
-- Index delivery_ready, one probe per handler and priority, delivery_aside, emitted_pkey; counts end at 10,000 per
-- probe, that of lanes at 1,000, of which each takes two probes. What is paused is not late. What is uncertain is counted in full: each is a call about which
-- somebody may have to be asked.
WITH due AS (
  SELECT h.id, h.paused_at IS NOT NULL AS paused, x.oldest, x.late
    FROM oncehook.handler h CROSS JOIN generate_series(0, 2) AS p(priority)
   CROSS JOIN LATERAL (
     SELECT min(run_at) AS oldest, count(*) AS late
       FROM (SELECT run_at FROM oncehook.delivery
              WHERE state = 'ready' AND NOT suspect AND paused_source IS NULL
                AND handler_id = h.id AND priority = p.priority::smallint AND run_at <= now()
              ORDER BY run_at LIMIT 10000) first
   ) x
)
SELECT coalesce(extract(epoch FROM clock_timestamp() - (SELECT min(oldest) FROM due WHERE NOT paused)), 0)::float8 AS oldest_ready,
       (SELECT coalesce(sum(late), 0)::bigint FROM due WHERE NOT paused) AS late,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE state = 'leased' AND lease_until < now() LIMIT 10000) x) AS stuck,
       (SELECT coalesce(sum(late), 0)::bigint FROM due WHERE id <> ALL ($1::int[])) AS unknown_handler,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0)::float8 FROM pg_stat_activity
         WHERE backend_xmin IS NOT NULL AND datname = current_database()) AS oldest_snapshot,
       (SELECT coalesce(n_dead_tup, 0) FROM pg_stat_user_tables WHERE relid = 'oncehook.delivery'::regclass) AS dead_rows,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE state = 'held' LIMIT 10000) x) AS held,
       (SELECT count(*) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
         WHERE i.inhparent = 'oncehook.event'::regclass AND c.relname > 'event_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')) AS days_ahead,
       (SELECT coalesce(sum(late), 0)::bigint FROM due WHERE paused)
         + (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE paused_source IS NOT NULL LIMIT 10000) x) AS paused,
       (SELECT count(*) FROM (SELECT handler_id, lane FROM oncehook.delivery WHERE paused_source IS NOT NULL AND lane IS NOT NULL LIMIT 1000) x
         CROSS JOIN LATERAL (SELECT event_id FROM oncehook.delivery
                              WHERE handler_id = x.handler_id AND lane = x.lane AND state = 'blocked' ORDER BY lane_seq LIMIT 1) behind
         CROSS JOIN LATERAL (SELECT source_id FROM oncehook.event WHERE id = behind.event_id LIMIT 1) e
         WHERE NOT EXISTS (SELECT FROM oncehook.source s WHERE s.id = e.source_id AND s.paused_at IS NOT NULL)) AS paused_lanes,
       (SELECT count(*) FROM oncehook.delivery WHERE state = 'uncertain') AS uncertain,
       (SELECT count(*) FROM oncehook.delivery WHERE state = 'uncertain' AND run_at = 'infinity') AS uncertain_for_people,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(uncertain_at)), 0)::float8 FROM oncehook.delivery WHERE state = 'uncertain') AS uncertain_oldest,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - emitted_at) FROM oncehook.emitted ORDER BY id LIMIT 1), 0)::float8 AS emitted_oldest,
       (SELECT count(*) FROM (SELECT source_id FROM oncehook.emitted ORDER BY id LIMIT 10000) first WHERE cardinality($2::int[]) > 0 AND source_id <> ALL ($2::int[])) AS emitted_unknown_source
