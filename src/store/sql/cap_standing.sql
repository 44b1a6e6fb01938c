-- cap_standing: how far the caps of locked handlers are used.
-- Run by store::cap::claim, after cap_lock: in a statement of its own, whose snapshot sees what the
-- holder before has claimed.
-- $1 handler_ids  $2 leases to count at most
-- Rows: one per handler; the moment they stand for. Every lease counts until it is settled or reaped, also one
-- past its end: its call may be out. Index handler_cap_pkey, delivery_lease.
SELECT c.handler_id, c.tokens, c.given_back, extract(epoch FROM clock_timestamp() - c.refilled_at)::float8 AS since, clock_timestamp() AS at,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery d
                               WHERE d.state = 'leased' AND d.handler_id = c.handler_id LIMIT $2::bigint) x) AS leased
  FROM oncehook.handler_cap c WHERE c.handler_id = ANY ($1::int[])
