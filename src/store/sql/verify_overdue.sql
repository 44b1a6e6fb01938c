-- verify_overdue: deliveries that have been due for long and that nobody has claimed.
-- Run by store::verify.
-- $1 examples  $2 patience (seconds), three times of which work may wait
-- Rows: findings, the oldest first. Those of retired handlers are found by verify_retired; what is paused waits
-- by order, and is told by verify_paused.
SELECT count(*) OVER () AS found, d.event_id, NULL::int AS source_id, NULL::text AS key, d.handler_id, d.run::int AS run,
       format('due for %s s', floor(extract(epoch FROM now() - d.run_at))) AS detail
  FROM oncehook.delivery d
 WHERE d.state = 'ready' AND d.paused_source IS NULL AND d.run_at < now() - make_interval(secs => 3 * $2::float8)
   AND NOT EXISTS (SELECT FROM oncehook.handler h WHERE h.id = d.handler_id AND (h.retired_at IS NOT NULL OR h.paused_at IS NOT NULL))
 ORDER BY d.run_at LIMIT (SELECT $1::bigint)
