-- replay_last: the last finished run.
-- Run by store::replay::run, after replay_open, in a statement of its own.
-- $1 event_id  $2 handler_id
SELECT run, generation, result FROM oncehook.outcome WHERE event_id = $1 AND handler_id = $2 ORDER BY run DESC LIMIT 1
