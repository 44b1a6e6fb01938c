-- verify_attempt_count: deliveries and outcomes that count other tries than were recorded.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. A try that failed or was lost is a row; one that ended its run well is none. The
-- hour allows for a clock that was set back. Counters end at 32,767.
WITH tries AS MATERIALIZED (
  SELECT event_id, handler_id, run, count(*) FILTER (WHERE verdict = 'lost') AS lost, count(*) FILTER (WHERE verdict IN ('retry', 'permanent')) AS failed,
         count(*) FILTER (WHERE verdict = 'not_yet') AS not_yet,
         count(*) AS tries
    FROM oncehook.attempt
   WHERE ended_at >= $2::timestamptz - interval '1 hour' AND event_id >= oncehook.uuid7_floor($2) AND verdict <> 'evidence'
   GROUP BY event_id, handler_id, run
), counted AS (
  SELECT d.event_id, d.handler_id, d.run::int AS run,
         format('failures: %s, losses: %s, not yet: %s, recorded: %s, %s and %s', d.failures, d.losses, d.not_yet,
                coalesce(t.failed, 0), coalesce(t.lost, 0), coalesce(t.not_yet, 0)) AS detail
    FROM oncehook.delivery d LEFT JOIN tries t USING (event_id, handler_id, run)
   WHERE d.event_id >= oncehook.uuid7_floor($2) AND greatest(d.failures, d.losses, d.not_yet) < 32767
     AND (d.failures, d.losses, d.not_yet) IS DISTINCT FROM (coalesce(t.failed, 0), coalesce(t.lost, 0), coalesce(t.not_yet, 0))
  UNION ALL
  SELECT o.event_id, o.handler_id, o.run::int,
         format('%s, tries: %s, of which failed or lost and recorded: %s', o.result, o.attempts, coalesce(t.tries, 0))
    FROM oncehook.outcome o LEFT JOIN tries t USING (event_id, handler_id, run)
   WHERE o.event_id >= oncehook.uuid7_floor($2) AND o.attempts < 32767
     AND o.attempts <> coalesce(t.tries, 0) + (o.result IN ('succeeded', 'failed', 'skipped'))::int
)
SELECT count(*) OVER () AS found, event_id, NULL::int AS source_id, NULL::text AS key, handler_id, run, detail
  FROM counted
 LIMIT (SELECT $1::bigint)
