-- delivery_stray: which of these priorities of handlers have something due.
-- Run by store::delivery::stray at every poll, for those that a handler's settings do not give: of
-- before a reload, or of another node.
-- $1 handler_ids  $2 priorities
-- Rows: those that have. Index delivery_ready, one probe each.
SELECT q.handler_id, q.priority
  FROM unnest($1::int[], $2::smallint[]) AS q(handler_id, priority)
 CROSS JOIN LATERAL (SELECT FROM oncehook.delivery
                      WHERE state = 'ready' AND NOT suspect AND paused_source IS NULL
                        AND handler_id = q.handler_id AND priority = q.priority AND run_at <= now() LIMIT 1) d
