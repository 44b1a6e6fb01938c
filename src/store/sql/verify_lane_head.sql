-- verify_lane_head: deliveries that wait in a lane without a head.
-- Run by store::verify.
-- $1 examples  $2 patience (seconds)
-- Rows: findings. The search of the nodes finds such lanes within seconds.
SELECT count(*) OVER () AS found, d.event_id, NULL::int AS source_id, NULL::text AS key, d.handler_id, d.run::int AS run,
       format('lane %s has no head', d.lane) AS detail
  FROM oncehook.delivery d
 WHERE d.state = 'blocked' AND d.run_at < now() - make_interval(secs => $2)
   AND NOT EXISTS (SELECT FROM oncehook.delivery head
                    WHERE head.handler_id = d.handler_id AND head.lane = d.lane AND head.lane IS NOT NULL AND head.state <> 'blocked')
 LIMIT (SELECT $1::bigint)
