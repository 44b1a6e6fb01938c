-- delivery_give_back: leases that were not started go back at once; nothing is counted.
-- Run by store::delivery::give_back (shutdown, a claim older than half its lease).
-- $1 event_ids  $2 handler_ids  $3 lease_tokens
-- Rows: deliveries given back; the others were settled or lost, which is no error. Nothing was sent,
-- so no call is under way.
UPDATE oncehook.delivery d
   SET state = 'ready', run_at = clock_timestamp(), lease_token = NULL, lease_until = NULL, leased_at = NULL, in_flight_until = NULL
  FROM unnest($1::uuid[], $2::int[], $3::uuid[]) AS q(event_id, handler_id, lease_token)
 WHERE d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
