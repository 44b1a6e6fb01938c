-- uncertain_hold: the call was not applied, no later one can be, and its lane waits for a person.
-- Run by store::uncertain::hold; the caller holds the row's lock.
-- $1 event_id  $2 handler_id  $3 run  $4 reason
-- Rows: 1 held; 0 it is not uncertain any more, the caller rolls back.
-- Index delivery_pkey.
UPDATE oncehook.delivery
   SET state = 'held', state_reason = $4, suspect = false, run_at = clock_timestamp(),
       in_flight_until = NULL, uncertain_at = NULL, call_token = NULL, probes = 0, probe_token = NULL, probing_from = NULL
 WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND state = 'uncertain'
