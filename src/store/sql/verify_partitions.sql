-- verify_partitions: day partitions that are missing from today to the day after tomorrow, in UTC.
-- Run by store::verify.
-- $1 examples
-- Rows: findings. A table of that name which is not attached is found too: make_partitions takes it
-- for the partition.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, NULL::int AS source_id, NULL::text AS key, NULL::int AS handler_id, NULL::int AS run,
       CASE WHEN to_regclass('oncehook.' || m.child) IS NULL THEN m.child || ' is missing' ELSE m.child || ' is not attached' END AS detail
  FROM (SELECT parent, parent || '_' || to_char((now() AT TIME ZONE 'UTC')::date + day, 'YYYYMMDD') AS child
          FROM unnest(ARRAY['request', 'event', 'outcome', 'receipt', 'attempt']) AS parent, generate_series(0, 2) AS day) m
 WHERE NOT EXISTS (SELECT FROM pg_inherits i
                    WHERE i.inhrelid = to_regclass('oncehook.' || m.child) AND i.inhparent = ('oncehook.' || m.parent)::regclass)
 ORDER BY m.child LIMIT (SELECT $1::bigint)
