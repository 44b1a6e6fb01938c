-- lane_head: the first of a lane, for whom all others of it wait.
-- Run by store::resolve, for whoever would decide about one that waits.
-- $1 handler_id  $2 lane
-- Rows: 1; none in the moment in which the next one is promoted. Index delivery_one_head.
SELECT s.name AS source, e.key, d.state
  FROM oncehook.delivery d JOIN oncehook.event e ON e.id = d.event_id JOIN oncehook.source s ON s.id = e.source_id
 WHERE d.handler_id = $1 AND d.lane = $2 AND d.lane IS NOT NULL AND d.state <> 'blocked'
