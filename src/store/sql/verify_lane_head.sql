-- verify_lane_head: deliveries that wait in a lane without a head, or behind one that waits for its time.
-- Run by store::verify.
-- $1 examples  $2 patience (seconds)
-- Rows: findings. The search of the nodes finds such lanes within seconds.
SELECT count(*) OVER () AS found, d.event_id, NULL::int AS source_id, NULL::text AS key, d.handler_id, d.run::int AS run,
       format('lane %s has no head that can run', d.lane) AS detail
  FROM oncehook.delivery d
 WHERE d.state = 'blocked' AND d.run_at < now() - make_interval(secs => $2)
   AND NOT EXISTS (SELECT FROM oncehook.delivery head
                    WHERE head.handler_id = d.handler_id AND head.lane = d.lane AND head.lane IS NOT NULL AND head.state <> 'blocked'
                      AND NOT (head.state = 'ready' AND head.postponed AND head.run_at > now()))
 LIMIT (SELECT $1::bigint)
