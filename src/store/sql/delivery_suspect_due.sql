-- delivery_suspect_due: whether a suspect waits for a node that will run it alone.
-- Run by store::delivery::suspect_due at every poll.
-- $1 handler_ids
-- Index delivery_suspect.
SELECT EXISTS (SELECT FROM oncehook.delivery WHERE state = 'ready' AND suspect AND paused_source IS NULL AND handler_id = ANY ($1::int[]) AND run_at <= now())
