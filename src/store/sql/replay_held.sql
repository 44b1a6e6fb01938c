-- replay_held: a head that its lane waits for begins anew, in its place.
-- Run by store::replay (for store::resolve too), under the row's lock (replay_held_lock, delivery_lock_any).
-- $1 event_id  $2 handler_id
-- Rows: 1. The old run ends as the dead letter that it would have been without its lane; the new one
-- counts from nothing and is the lane's head from the first moment on.
WITH old AS (
  SELECT event_id, handler_id, run, generation, failures, losses, not_yet, state_reason FROM oncehook.delivery
   WHERE event_id = $1 AND handler_id = $2 AND state = 'held'
), ended AS (
  INSERT INTO oncehook.outcome (event_id, handler_id, run, generation, result, decided_by, reason, attempts, finished_at)
  SELECT event_id, handler_id, run, generation, 'dead', 'handler', state_reason, failures + losses + not_yet, clock_timestamp()
    FROM old
  RETURNING event_id, handler_id
)
UPDATE oncehook.delivery d
   SET run = run + 1, state = 'ready', state_reason = NULL, run_at = clock_timestamp(), first_try_at = NULL, suspect = false,
       failures = 0, losses = 0, losses_alone = 0, not_yet = 0, not_yet_since = NULL
  FROM ended WHERE d.event_id = ended.event_id AND d.handler_id = ended.handler_id
