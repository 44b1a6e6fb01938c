-- uncertain_claim: takes uncertain deliveries about which something is to be asked now.
-- Run by store::uncertain::claim, a transaction of its own (autocommit).
-- $1 handler_ids  $2 seconds after which another may ask  $3 limits
-- Rows: at most the limit of each handler. `landed`: the call can no longer be under way, so that "absent" is a proof;
-- it is said here, before the question leaves.
-- Index delivery_uncertain, then rows by address, as in delivery_claim.
WITH claimed AS (
  UPDATE oncehook.delivery d
     SET probes = least(probes + 1, 32767), probe_token = gen_random_uuid(),
         run_at = clock_timestamp() + make_interval(secs => ($2::float8[])[array_position($1::int[], d.handler_id)])
   WHERE d.ctid = ANY (ARRAY(
     SELECT x.ctid FROM unnest((SELECT $1::int[]), (SELECT $3::int[])) AS q(handler_id, room),
     LATERAL (SELECT ctid FROM oncehook.delivery
               WHERE state = 'uncertain' AND handler_id = q.handler_id AND run_at <= now()
               ORDER BY run_at LIMIT q.room FOR UPDATE SKIP LOCKED) x))
  RETURNING d.event_id, d.handler_id, d.run, d.generation, d.failures, d.suspect, d.losses_alone, d.losses, d.probe_token AS lease_token,
            d.priority, d.lane, d.not_yet, d.probes, d.in_flight_until <= clock_timestamp() AS landed,
            extract(epoch FROM clock_timestamp() - d.not_yet_since)::float8 AS since_not_yet,
            extract(epoch FROM clock_timestamp() - d.first_try_at)::float8 AS since_first
)
SELECT c.*, e.source_id, e.key, e.type, e.entity, e.occurred_at, e.correlation_id
  FROM claimed c LEFT JOIN LATERAL (SELECT source_id, key, type, entity, occurred_at, correlation_id FROM oncehook.event WHERE id = c.event_id LIMIT 1) e ON true
