-- verify_sessions: transactions of this database that have been open for long: idle ones, old
-- snapshots, prepared transactions.
-- Run by store::verify.
-- $1 examples  $2 patience (seconds)
-- Rows: findings, without any statement's text. They keep dead rows of the hot table from being
-- vacuumed, and their locks. Sessions of other roles are seen in full by pg_monitor only.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, NULL::int AS source_id, NULL::text AS key, NULL::int AS handler_id, NULL::int AS run, detail
  FROM (SELECT format('backend %s (%s) is %s for %s s', pid, coalesce(nullif(application_name, ''), 'unnamed'), state,
                      floor(extract(epoch FROM clock_timestamp() - state_change))) AS detail, xact_start AS since
          FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
           AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - make_interval(secs => $2)
         UNION ALL
        SELECT format('backend %s (%s) has its transaction open for %s s', pid, coalesce(nullif(application_name, ''), 'unnamed'),
                      floor(extract(epoch FROM clock_timestamp() - xact_start))), xact_start
          FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
           AND state NOT LIKE 'idle in transaction%' AND xact_start < clock_timestamp() - make_interval(secs => $2)
         UNION ALL
        SELECT format('prepared transaction of %s is open for %s s', owner, floor(extract(epoch FROM clock_timestamp() - prepared))), prepared
          FROM pg_prepared_xacts
         WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => $2)) open
 ORDER BY since LIMIT (SELECT $1::bigint)
