-- delivery_retry: the holders of leases put their deliveries back for later.
-- Run by store::delivery::retry_later.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens  $4 delays (seconds)
-- Rows: deliveries put back; fewer than given means a lease is lost and the caller rolls back.
-- Index delivery_pkey.
UPDATE oncehook.delivery d
   SET state = 'ready', failures = least(failures + 1, 32767), suspect = false,
       run_at = clock_timestamp() + make_interval(secs => q.delay),
       lease_token = NULL, lease_until = NULL, leased_at = NULL, in_flight_until = NULL
  FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::float8[]) AS q(event_id, handler_id, lease_token, delay)
 WHERE d.ctid = ANY (ARRAY(
   SELECT x.ctid FROM unnest($1::uuid[], $2::int[], $3::uuid[]) AS k(event_id, handler_id, lease_token)
    CROSS JOIN LATERAL (SELECT ctid FROM oncehook.delivery
                         WHERE event_id = k.event_id AND handler_id = k.handler_id AND lease_token = k.lease_token
                         LIMIT 1) x))
   AND d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
