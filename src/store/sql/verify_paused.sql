-- verify_paused: what is paused: no finding of anything wrong.
-- Run by store::verify.
-- $1 examples
-- Rows: one per paused handler or source.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, p.source_id, NULL::text AS key, p.handler_id, NULL::int AS run,
       'paused since ' || to_char(p.paused_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ' by ' || p.paused_by
         || coalesce(': ' || p.paused_reason, '') AS detail
  FROM (SELECT NULL::int AS source_id, id AS handler_id, paused_at, paused_by, paused_reason FROM oncehook.handler
         UNION ALL
        SELECT id, NULL, paused_at, paused_by, paused_reason FROM oncehook.source) p
 WHERE p.paused_at IS NOT NULL ORDER BY p.paused_at LIMIT (SELECT $1::bigint)
