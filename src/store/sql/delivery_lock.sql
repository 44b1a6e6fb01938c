-- delivery_lock: locks the leased rows of a settle batch, in key order.
-- Run by store::locked::begin, first in the settle transaction.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens
-- Rows: those still ours, with the transaction's id; a row not returned has lost its lease.
-- Index delivery_pkey, row by row. As a join over state = 'leased' the planner took delivery_lease
-- and walked every lease and every dead entry of it per batch (18 ms at 2,000 leases against 0.15).
-- A row with a token is leased; a CHECK says so.
SELECT d.event_id, d.handler_id, pg_current_xact_id()::text AS xact
  FROM (SELECT * FROM unnest($1::uuid[], $2::int[], $3::uuid[]) AS q(event_id, handler_id, lease_token)
         ORDER BY event_id, handler_id) q
 CROSS JOIN LATERAL (SELECT event_id, handler_id FROM oncehook.delivery
                      WHERE event_id = q.event_id AND handler_id = q.handler_id AND lease_token = q.lease_token
                      LIMIT 1 FOR UPDATE) d
