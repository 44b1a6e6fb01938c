-- delivery_uncertain: a call was perhaps made and its result is not known; nothing is sent again.
-- Run by store::uncertain::begin: by the holder of the lease, or by the reaper. The caller holds the
-- row's lock.
-- $1 event_id  $2 handler_id  $3 lease_token  $4 verdict (unknown, lost)  $5 error  $6 age of the try (seconds)
-- $7 first probe from now on (seconds), NULL for none  $8 losses alone from now on  $9 whether it leaves
-- its lane, in which the caller promotes the next one
-- Rows: 1 ours; 0 the lease is somebody else's, the caller rolls back. The try and the transition are
-- one statement: none can be without the other. A claim of the version before set no in_flight_until.
-- Index delivery_pkey.
WITH moved AS (
  UPDATE oncehook.delivery
     SET state = 'uncertain', uncertain_at = clock_timestamp(), call_token = lease_token,
         in_flight_until = coalesce(in_flight_until, lease_until),
         run_at = coalesce(clock_timestamp() + make_interval(secs => $7::float8), 'infinity'),
         failures = least(failures + ($4::text = 'unknown')::int, 32767), losses = least(losses + ($4::text = 'lost')::int, 32767),
         losses_alone = $8, suspect = ($4::text = 'lost'), lease_token = NULL, lease_until = NULL, leased_at = NULL,
         lane = CASE WHEN NOT $9::bool THEN lane END, lane_seq = CASE WHEN NOT $9::bool THEN lane_seq END
   WHERE event_id = $1 AND handler_id = $2 AND lease_token = $3
  RETURNING event_id, handler_id, run, call_token, in_flight_until
)
INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, started_at, ended_at, verdict, error, in_flight_until)
SELECT event_id, handler_id, run, call_token, clock_timestamp() - make_interval(secs => $6::float8), clock_timestamp(), $4, $5, in_flight_until
  FROM moved
