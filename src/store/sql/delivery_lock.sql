-- delivery_lock: locks the leased rows of a settle batch, in key order.
-- Run by store::delivery::lock, first in the settle transaction.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens
-- Rows: those still ours, with the transaction's id; a row not returned has lost its lease.
-- Index delivery_pkey.
SELECT d.event_id, d.handler_id, pg_current_xact_id()::text AS xact
  FROM oncehook.delivery d JOIN unnest($1::uuid[], $2::int[], $3::uuid[]) AS q(event_id, handler_id, lease_token)
    ON d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
 WHERE d.state = 'leased'
 ORDER BY d.event_id, d.handler_id FOR UPDATE OF d
