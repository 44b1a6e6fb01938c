-- delivery_suspect_due: which handlers have a suspect that waits for a node that will run it alone.
-- Run by store::delivery::suspects_due at every poll.
-- $1 handler_ids
-- Rows: those of them. Index delivery_suspect, a probe per handler.
SELECT q.handler_id FROM unnest($1::int[]) AS q(handler_id)
 WHERE EXISTS (SELECT FROM oncehook.delivery
                WHERE state = 'ready' AND suspect AND paused_source IS NULL AND handler_id = q.handler_id AND run_at <= now())
