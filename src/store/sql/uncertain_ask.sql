-- uncertain_ask: a person has the receiver asked again: at once, and then as the schedule says from now on.
-- Run by store::uncertain::ask; the caller holds the row's lock.
-- $1 event_id  $2 handler_id  $3 run
-- Rows: 1 it is asked about; 0 it is not uncertain any more, the caller rolls back. A question that is under way
-- releases and refuses nothing any more.
-- Index delivery_pkey.
UPDATE oncehook.delivery
   SET run_at = clock_timestamp(), probing_from = clock_timestamp(), probes = 0, probe_token = NULL
 WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND state = 'uncertain'
