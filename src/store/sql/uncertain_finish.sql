-- uncertain_finish: a delivery that waits for somebody's word ends by evidence, a probe or a person.
-- Run by store::uncertain::finish; the caller holds the row's lock and promotes the next of its lane.
-- $1 event_id  $2 handler_id  $3 run  $4 result  $5 decided_by  $6 reason  $7 resource  $8 state: uncertain or held  $9 external_id
-- Rows: 1 ended; 0 it is not in that state any more, the caller rolls back. No token: that an effect is
-- there stays true whoever asked.
-- Index delivery_pkey.
WITH ended AS (
  DELETE FROM oncehook.delivery
   WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND state = $8 AND state IN ('uncertain', 'held')
  RETURNING event_id, handler_id, run, generation, failures, losses, not_yet
)
INSERT INTO oncehook.outcome (event_id, handler_id, run, generation, result, decided_by, reason, resource, attempts, finished_at, external_id)
SELECT event_id, handler_id, run, generation, $4, $5, $6, $7, failures + losses + not_yet, clock_timestamp(), $9
  FROM ended
