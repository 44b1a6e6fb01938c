-- delivery_claim: leases due deliveries of several handlers at once.
-- Run by store::delivery::claim, a transaction of its own (autocommit).
-- $1 handler_ids  $2 priorities  $3 quotas  $4 leases (seconds)  $5 how long a call may be under way
-- (seconds), NULL where nothing leaves the database; a handler may stand there once per priority
-- Rows: at most the quota per handler and priority, with what the handler needs.
-- Index delivery_ready, then rows by address. The addresses reach the UPDATE as an array: as a
-- join the planner hashed the whole table (149 ms against 2), and a LIMIT under a nested loop can
-- lock more than n. Addresses are safe because the rows are locked in the same statement.
-- The arguments go through a SELECT so that the planner cannot count them: else it planned anew at
-- every claim (0.6 ms of 1.5). now(), not clock_timestamp(), bounds the index scan: future rows are never read.
WITH claimed AS (
  UPDATE oncehook.delivery d
     SET state = 'leased', lease_token = gen_random_uuid(), leased_at = clock_timestamp(),
         lease_until = clock_timestamp() + make_interval(secs => ($4::float8[])[array_position($1::int[], d.handler_id)]),
         in_flight_until = clock_timestamp() + make_interval(secs => ($5::float8[])[array_position($1::int[], d.handler_id)]),
         first_try_at = coalesce(first_try_at, clock_timestamp()), postponed = false
   WHERE d.ctid = ANY (ARRAY(
     SELECT x.ctid FROM unnest((SELECT $1::int[]), (SELECT $2::smallint[]), (SELECT $3::int[])) AS q(handler_id, priority, quota),
     LATERAL (SELECT ctid FROM oncehook.delivery
               WHERE state = 'ready' AND NOT suspect AND paused_source IS NULL
                 AND handler_id = q.handler_id AND priority = q.priority AND run_at <= now()
               ORDER BY run_at LIMIT q.quota FOR UPDATE SKIP LOCKED) x))
  RETURNING d.event_id, d.handler_id, d.run, d.generation, d.failures, d.suspect, d.losses_alone, d.losses, d.lease_token, d.priority, d.lane, d.not_yet,
            extract(epoch FROM clock_timestamp() - d.not_yet_since)::float8 AS since_not_yet,
            extract(epoch FROM clock_timestamp() - d.first_try_at)::float8 AS since_first
)
SELECT c.*, e.source_id, e.key, e.type, e.entity, e.occurred_at, e.correlation_id
  FROM claimed c LEFT JOIN LATERAL (SELECT source_id, key, type, entity, occurred_at, correlation_id FROM oncehook.event WHERE id = c.event_id LIMIT 1) e ON true
