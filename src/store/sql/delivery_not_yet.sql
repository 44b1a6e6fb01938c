-- delivery_not_yet: the holders of leases put deliveries back whose time has not come; no failure.
-- Run by store::delivery::postpone.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens  $4 delays (seconds)
-- Rows: deliveries put back; fewer than given means a lease is lost and the caller rolls back.
-- With a lane it goes behind those that wait there, which may be what it waits for; the caller
-- promotes the next one, perhaps this one again, which then gives way to any that comes (lane_give_way).
-- Index delivery_pkey.
UPDATE oncehook.delivery d
   SET state = CASE WHEN lane IS NULL THEN 'ready' ELSE 'blocked' END,
       lane_seq = CASE WHEN lane IS NOT NULL THEN nextval('oncehook.lane_seq') END, postponed = lane IS NOT NULL,
       not_yet = least(not_yet + 1, 32767), not_yet_since = coalesce(not_yet_since, clock_timestamp()), suspect = false,
       run_at = clock_timestamp() + make_interval(secs => q.delay),
       lease_token = NULL, lease_until = NULL, leased_at = NULL, in_flight_until = NULL
  FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::float8[]) AS q(event_id, handler_id, lease_token, delay)
 WHERE d.ctid = ANY (ARRAY(
   SELECT x.ctid FROM unnest($1::uuid[], $2::int[], $3::uuid[]) AS k(event_id, handler_id, lease_token)
    CROSS JOIN LATERAL (SELECT ctid FROM oncehook.delivery
                         WHERE event_id = k.event_id AND handler_id = k.handler_id AND lease_token = k.lease_token
                         LIMIT 1) x))
   AND d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
