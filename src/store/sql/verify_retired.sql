-- verify_retired: deliveries that wait for a retired handler.
-- Run by store::verify.
-- $1 examples
-- Rows: findings. A node that has not reloaded yet still fans out to it.
SELECT count(*) OVER () AS found, d.event_id, NULL::int AS source_id, NULL::text AS key, d.handler_id, d.run::int AS run,
       'its handler was retired at ' || to_char(h.retired_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS detail
  FROM oncehook.delivery d JOIN oncehook.handler h ON h.id = d.handler_id
 WHERE h.retired_at IS NOT NULL
 LIMIT (SELECT $1::bigint)
