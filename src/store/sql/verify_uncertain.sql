-- verify_uncertain: uncertain deliveries that somebody ought to have looked at long ago.
-- Run by store::verify.
-- $1 examples  $2 patience (seconds)
-- Rows: findings, the oldest first. Those that wait for a person are no finding: `events --state
-- uncertain` lists them. Index delivery_uncertain.
SELECT count(*) OVER () AS found, d.event_id, NULL::int AS source_id, NULL::text AS key, d.handler_id, d.run::int AS run,
       CASE WHEN d.run_at = 'infinity' THEN 'its late answer is kept, and it waits for a person'
            ELSE format('due to be asked about for %s s', floor(extract(epoch FROM now() - d.run_at))) END AS detail
  FROM oncehook.delivery d
 WHERE d.state = 'uncertain'
   AND (d.run_at < now() - make_interval(secs => $2)
        OR (d.run_at = 'infinity'
            AND EXISTS (SELECT FROM oncehook.attempt a
                         WHERE a.event_id = d.event_id AND a.handler_id = d.handler_id AND a.run = d.run AND a.verdict = 'evidence'
                           AND (a.answer = 'succeeded' OR (a.answer IS NOT NULL AND a.lease_token = d.call_token))
                           AND a.ended_at < now() - make_interval(secs => $2))))
 ORDER BY d.run_at LIMIT (SELECT $1::bigint)
