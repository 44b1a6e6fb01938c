-- delivery_hold: heads of lanes that cannot succeed stay where they are until a person decides.
-- Run by store::delivery::hold, in the transaction that records their last try.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens  $4 reasons  $5 whether the last try was lost (else it failed)
-- Rows: deliveries held; fewer than given means a lease is lost and the caller rolls back.
-- Index delivery_pkey.
UPDATE oncehook.delivery d
   SET state = 'held', state_reason = q.reason, suspect = false,
       failures = least(failures + (NOT q.lost)::int, 32767), losses = least(losses + q.lost::int, 32767),
       lease_token = NULL, lease_until = NULL, leased_at = NULL, in_flight_until = NULL
  FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[], $5::bool[]) AS q(event_id, handler_id, lease_token, reason, lost)
 WHERE d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
