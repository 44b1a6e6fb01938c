-- uncertain_release: the call was not applied; it is sent again under the same effect key.
-- Run by store::uncertain::release; the caller holds the row's lock.
-- $1 event_id  $2 handler_id  $3 run  $4 probe_token, NULL for a person's word
-- Rows: 1 ready; 0 it is not uncertain any more, another has asked since, or the call may still be
-- under way: nothing changes.
-- Index delivery_pkey.
UPDATE oncehook.delivery
   SET state = 'ready', run_at = clock_timestamp(), in_flight_until = NULL, uncertain_at = NULL, call_token = NULL, probes = 0, probe_token = NULL, probing_from = NULL
 WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND state = 'uncertain'
   AND in_flight_until <= clock_timestamp()
   AND ($4::uuid IS NULL OR probe_token = $4)
