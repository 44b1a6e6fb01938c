-- replay_open: opens a new run of a finished (event, handler); not due until replay_arm.
-- Run by store::replay::run and store::again, first in its transaction. The insert comes before the outcomes are
-- read: the other way round, a settle that commits in between would yield a run number that is
-- already finished.
-- $1 event_id  $2 handler_id
-- Rows: 1 opened; 0 the delivery is live, replay is refused.
INSERT INTO oncehook.delivery (event_id, handler_id, run_at) VALUES ($1, $2, 'infinity')
ON CONFLICT DO NOTHING
