-- replay_arm: numbers the new run and makes it due.
-- Run by store::replay::run, in the transaction that opened it.
-- $1 event_id  $2 handler_id  $3 run  $4 generation
-- Rows: 1.
UPDATE oncehook.delivery SET run = $3, generation = $4, run_at = clock_timestamp()
 WHERE event_id = $1 AND handler_id = $2 AND state = 'ready' AND run_at = 'infinity'
