-- delivery_aside_suspects: sets aside the suspects of paused sources, which nobody has to run alone.
-- Run by store::flow::set_suspects_aside at every poll while a source is paused.
-- $1 handler_ids  $2 how many to look at
-- Rows: deliveries set aside. Index delivery_suspect, event_DAY_pkey, then rows by address.
UPDATE oncehook.delivery d
   SET paused_source = (SELECT source_id FROM oncehook.event WHERE id = d.event_id LIMIT 1)
 WHERE d.ctid = ANY (ARRAY(
   SELECT x.ctid
     FROM (SELECT ctid, event_id FROM oncehook.delivery
            WHERE state = 'ready' AND suspect AND paused_source IS NULL AND handler_id = ANY ($1::int[]) AND run_at <= now()
            ORDER BY run_at LIMIT $2 FOR UPDATE SKIP LOCKED) x
    CROSS JOIN LATERAL (SELECT source_id FROM oncehook.event WHERE id = x.event_id LIMIT 1) e
    WHERE EXISTS (SELECT FROM oncehook.source s WHERE s.id = e.source_id AND s.paused_at IS NOT NULL)))
