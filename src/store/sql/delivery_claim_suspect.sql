-- delivery_claim_suspect: leases the oldest due suspect of any of the handlers.
-- Run by store::delivery::claim_suspect, a transaction of its own, only while the node executes nothing else.
-- $1 handler_ids  $2 leases (seconds)  $3 how long a call may be under way (seconds), as in delivery_claim
-- Rows: 0 or 1; none of a handler that is paused, which the node may not know yet. Index delivery_suspect.
WITH claimed AS (
  UPDATE oncehook.delivery d
     SET state = 'leased', lease_token = gen_random_uuid(), leased_at = clock_timestamp(),
         lease_until = clock_timestamp() + make_interval(secs => ($2::float8[])[array_position($1::int[], d.handler_id)]),
         in_flight_until = clock_timestamp() + make_interval(secs => ($3::float8[])[array_position($1::int[], d.handler_id)]),
         first_try_at = coalesce(first_try_at, clock_timestamp()), postponed = false
   WHERE d.ctid = ANY (ARRAY(
     SELECT ctid FROM oncehook.delivery
      WHERE state = 'ready' AND suspect AND paused_source IS NULL AND run_at <= now()
        AND handler_id = ANY (ARRAY(SELECT id FROM oncehook.handler WHERE id = ANY ($1::int[]) AND paused_at IS NULL))
      ORDER BY run_at LIMIT 1 FOR UPDATE SKIP LOCKED))
  RETURNING d.event_id, d.handler_id, d.run, d.generation, d.failures, d.suspect, d.losses_alone, d.losses, d.lease_token, d.priority, d.lane, d.not_yet,
            extract(epoch FROM clock_timestamp() - d.not_yet_since)::float8 AS since_not_yet,
            extract(epoch FROM clock_timestamp() - d.first_try_at)::float8 AS since_first
)
SELECT c.*, e.source_id, e.key, e.type, e.entity, e.occurred_at, e.correlation_id
  FROM claimed c LEFT JOIN LATERAL (SELECT source_id, key, type, entity, occurred_at, correlation_id FROM oncehook.event WHERE id = c.event_id LIMIT 1) e ON true
