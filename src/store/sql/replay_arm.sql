-- replay_arm: numbers the new run and makes it due, or the last of its lane.
-- Run by store::replay::run and store::again, in the transaction that opened it.
-- $1 event_id  $2 handler_id  $3 run  $4 generation  $5 lane
-- Rows: 1.
UPDATE oncehook.delivery
   SET run = $3, generation = $4, run_at = clock_timestamp(), lane = $5,
       state = CASE WHEN $5::text IS NULL THEN 'ready' ELSE 'blocked' END,
       lane_seq = CASE WHEN $5::text IS NOT NULL THEN nextval('oncehook.lane_seq') END
 WHERE event_id = $1 AND handler_id = $2 AND state = 'ready' AND run_at = 'infinity'
