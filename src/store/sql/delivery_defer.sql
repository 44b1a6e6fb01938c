-- delivery_defer: retries beyond the retry budget go back for later; nothing is counted.
-- Run by store::delivery::defer, by the node that claimed them.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens  $4 delays (seconds)
-- Rows: deliveries put back; the others were lost, which is no error. Index delivery_pkey.
UPDATE oncehook.delivery d
   SET state = 'ready', run_at = clock_timestamp() + make_interval(secs => q.delay),
       lease_token = NULL, lease_until = NULL, leased_at = NULL
  FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::float8[]) AS q(event_id, handler_id, lease_token, delay)
 WHERE d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
