-- effect_reserve: takes the place of a delivery that is not live, so that no replay opens a run meanwhile.
-- Run by store::effects::reserve, in a transaction that gives it back (effect_free) before it ends.
-- $1 event_id  $2 handler_id
-- Rows: 1 ours, and nobody else ever sees it; 0 a replay was quicker: it is live. It waits for one under way.
INSERT INTO oncehook.delivery (event_id, handler_id, run_at) VALUES ($1, $2, 'infinity')
ON CONFLICT DO NOTHING
