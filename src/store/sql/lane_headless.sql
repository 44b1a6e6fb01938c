-- lane_headless: lanes that stand still: deliveries wait in them and none is the head, or the head
-- waits for its time while another could run.
-- Run by store::lanes at intervals, in pages. A node that died between a commit and its look at the
-- lanes leaves such a lane behind; a commit of this moment shows as one, too.
-- $1 handler_id  $2 lane: those behind this one  $3 how many lanes to look at
-- Rows: those of them, and the last one that was looked at, if there may be more behind it.
-- Index delivery_blocked, one probe per lane, and delivery_one_head.
WITH RECURSIVE walk AS (
  (SELECT handler_id, lane, 1 AS no FROM oncehook.delivery
    WHERE state = 'blocked' AND (handler_id, lane) > ($1::int, $2::text)
    ORDER BY handler_id, lane LIMIT 1)
  UNION ALL
  SELECT n.handler_id, n.lane, w.no + 1
    FROM walk w
   CROSS JOIN LATERAL (SELECT handler_id, lane FROM oncehook.delivery
                        WHERE state = 'blocked' AND (handler_id, lane) > (w.handler_id, w.lane)
                        ORDER BY handler_id, lane LIMIT 1) n
   WHERE w.no < $3::int
)
SELECT * FROM (
  SELECT w.handler_id, w.lane, w.no = $3::int AS is_last,
         NOT EXISTS (SELECT FROM oncehook.delivery head
                      WHERE head.handler_id = w.handler_id AND head.lane = w.lane AND head.lane IS NOT NULL AND head.state <> 'blocked'
                        AND NOT (head.state = 'ready' AND head.postponed AND head.run_at > now()
                                 AND EXISTS (SELECT FROM oncehook.delivery behind
                                              WHERE behind.handler_id = w.handler_id AND behind.lane = w.lane AND behind.state = 'blocked'
                                                AND (NOT behind.postponed OR behind.run_at <= now())))) AS stands_still
    FROM walk w) looked
 WHERE stands_still OR is_last
