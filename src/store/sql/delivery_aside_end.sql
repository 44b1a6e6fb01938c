-- delivery_aside_end: what was set aside for a source that is not paused is ready again.
-- Run by store::flow::end_aside, in steps, until none is left.
-- $1 at most so many of each source
-- Rows: deliveries returned. Index delivery_aside, then rows by address. A source that is paused
-- again meanwhile has them set aside again by whoever meets them.
UPDATE oncehook.delivery d SET paused_source = NULL
 WHERE d.ctid = ANY (ARRAY(
   SELECT x.ctid FROM oncehook.source s
    CROSS JOIN LATERAL (SELECT ctid FROM oncehook.delivery WHERE paused_source = s.id LIMIT $1 FOR UPDATE SKIP LOCKED) x
    WHERE s.paused_at IS NULL))
