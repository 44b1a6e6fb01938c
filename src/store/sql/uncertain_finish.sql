-- uncertain_finish: an uncertain delivery ends by evidence, a probe or a person.
-- Run by store::uncertain::finish; the caller holds the row's lock.
-- $1 event_id  $2 handler_id  $3 run  $4 result  $5 decided_by  $6 reason  $7 resource
-- Rows: 1 ended; 0 it is not uncertain any more, the caller rolls back. No token: that an effect is
-- there stays true whoever asked.
-- Index delivery_pkey.
WITH ended AS (
  DELETE FROM oncehook.delivery
   WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND state = 'uncertain'
  RETURNING event_id, handler_id, run, generation, failures, losses
)
INSERT INTO oncehook.outcome (event_id, handler_id, run, generation, result, decided_by, reason, resource, attempts, finished_at)
SELECT event_id, handler_id, run, generation, $4, $5, $6, $7, failures + losses, clock_timestamp()
  FROM ended
