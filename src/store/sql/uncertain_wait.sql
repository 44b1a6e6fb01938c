-- uncertain_wait: a probe could not tell; when to ask again, or a person's task.
-- Run by store::uncertain::wait; the caller holds the row's lock.
-- $1 event_id  $2 handler_id  $3 run  $4 probe_token  $5 seconds after it became uncertain, or a
-- person had it asked again; NULL for none
-- $6 whether it is asked again when the call has ended  $7 least time from now on (seconds)
-- Rows: 1 ours; 0 it is not uncertain any more or another has asked since: nothing changes.
-- Index delivery_pkey.
UPDATE oncehook.delivery
   SET probe_token = NULL,
       run_at = CASE WHEN $5::float8 IS NOT NULL THEN greatest(coalesce(probing_from, uncertain_at) + make_interval(secs => $5::float8), clock_timestamp() + make_interval(secs => $7::float8))
                     WHEN $6::bool THEN greatest(in_flight_until, clock_timestamp() + make_interval(secs => $7::float8))
                     ELSE 'infinity' END
 WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND state = 'uncertain' AND probe_token = $4
