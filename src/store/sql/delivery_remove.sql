-- delivery_remove: the run has an outcome already, only the row is left over.
-- Run by store::delivery::remove, in a settle transaction that found the outcome.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens
-- Rows: deliveries removed; fewer than given means a lease is lost and the caller rolls back.
-- Index delivery_pkey.
DELETE FROM oncehook.delivery d
 USING unnest($1::uuid[], $2::int[], $3::uuid[]) AS q(event_id, handler_id, lease_token)
 WHERE d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
