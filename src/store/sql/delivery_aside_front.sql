-- delivery_aside_front: sets aside what a paused source has among a handler's next deliveries.
-- Run by store::flow::set_front_aside, while a claim finds mostly rows of a paused source.
-- $1 handler_id  $2 source_id  $3 how many of each priority to look at
-- Rows: deliveries set aside; none when the source was resumed meanwhile. Index delivery_ready,
-- event_DAY_pkey, then rows by address. Rows of other sources are locked for its time and skipped by claims.
UPDATE oncehook.delivery d SET paused_source = $2
 WHERE d.ctid = ANY (ARRAY(
   SELECT x.ctid FROM generate_series(0, 2) AS p(priority)
    CROSS JOIN LATERAL (SELECT ctid, event_id FROM oncehook.delivery
                         WHERE state = 'ready' AND NOT suspect AND paused_source IS NULL
                           AND handler_id = $1 AND priority = p.priority::smallint AND run_at <= now()
                         ORDER BY run_at LIMIT $3 FOR UPDATE SKIP LOCKED) x
    CROSS JOIN LATERAL (SELECT source_id FROM oncehook.event WHERE id = x.event_id LIMIT 1) e
    WHERE e.source_id = $2))
   AND EXISTS (SELECT FROM oncehook.source WHERE id = $2 AND paused_at IS NOT NULL)
