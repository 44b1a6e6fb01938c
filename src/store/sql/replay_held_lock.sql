-- replay_held_lock: locks a delivery that its lane waits for.
-- Run by store::replay, first in its transaction.
-- $1 event_id  $2 handler_id
-- Rows: its run and generation; none when it is not held.
SELECT run, generation FROM oncehook.delivery WHERE event_id = $1 AND handler_id = $2 AND state = 'held' FOR UPDATE
