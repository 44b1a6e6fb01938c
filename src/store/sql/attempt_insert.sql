-- attempt_insert: failed and lost tries.
-- Run by store::delivery::record_attempts, in the transaction of the transition.
-- $1 event_ids  $2 handler_ids  $3 runs  $4 lease_tokens  $5 verdicts  $6 errors  $7 ages of the try (seconds)
INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, started_at, ended_at, verdict, error)
SELECT q.event_id, q.handler_id, q.run, q.lease_token, clock_timestamp() - make_interval(secs => q.age), clock_timestamp(), q.verdict, q.error
  FROM unnest($1::uuid[], $2::int[], $3::smallint[], $4::uuid[], $5::text[], $6::text[], $7::float8[])
       AS q(event_id, handler_id, run, lease_token, verdict, error, age)
