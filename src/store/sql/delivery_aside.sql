-- delivery_aside: leases of events whose source is paused go aside; nothing is counted.
-- Run by store::flow::set_aside, by the node that claimed them.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens  $4 source_ids
-- Rows: deliveries set aside; the others were lost, which is no error. run_at stays, so that they
-- keep their place; a first try that did not begin leaves no trace.
-- Index delivery_pkey.
UPDATE oncehook.delivery d
   SET state = 'ready', paused_source = q.source_id, lease_token = NULL, lease_until = NULL, leased_at = NULL, in_flight_until = NULL,
       first_try_at = CASE WHEN d.failures > 0 OR d.losses > 0 OR d.not_yet > 0 THEN d.first_try_at END
  FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::int[]) AS q(event_id, handler_id, lease_token, source_id)
 WHERE d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
