-- delivery_expired: leases past their end, locked.
-- Run by store::delivery::expired, in the transaction that decides about them.
-- $1 handler_ids  $2 limit
-- Rows: what the state machine needs. A row that is being settled is locked by its worker and
-- skipped. The same transaction repeats the token in its write.
-- Index delivery_lease.
SELECT event_id, handler_id, run, generation, failures, suspect, losses_alone, losses, lease_token, priority, lane, not_yet,
       extract(epoch FROM clock_timestamp() - not_yet_since)::float8 AS since_not_yet,
       extract(epoch FROM clock_timestamp() - leased_at)::float8 AS held,
       extract(epoch FROM clock_timestamp() - first_try_at)::float8 AS since_first
  FROM oncehook.delivery
 WHERE state = 'leased' AND lease_until < now() AND handler_id = ANY ($1::int[])
 ORDER BY lease_until LIMIT $2 FOR UPDATE SKIP LOCKED
