-- lane_headless: lanes in which deliveries wait and none is the head.
-- Run by store::lanes at intervals. A node that died between a commit and its look at the lanes
-- leaves such a lane behind; a commit of this moment shows as one, too.
-- $1 limit
-- Index delivery_blocked, one probe per lane, and delivery_one_head.
WITH RECURSIVE walk AS (
  (SELECT handler_id, lane FROM oncehook.delivery WHERE state = 'blocked' ORDER BY handler_id, lane LIMIT 1)
  UNION ALL
  SELECT n.handler_id, n.lane
    FROM walk w
   CROSS JOIN LATERAL (SELECT handler_id, lane FROM oncehook.delivery
                        WHERE state = 'blocked' AND (handler_id, lane) > (w.handler_id, w.lane)
                        ORDER BY handler_id, lane LIMIT 1) n
)
SELECT w.handler_id, w.lane FROM walk w
 WHERE NOT EXISTS (SELECT FROM oncehook.delivery head
                    WHERE head.handler_id = w.handler_id AND head.lane = w.lane AND head.lane IS NOT NULL AND head.state <> 'blocked')
 LIMIT $1
