-- delivery_finish: the holders of leases end their deliveries.
-- Run by store::delivery::finish, in the transaction that holds the effects.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens  $4 results  $5 decided_by  $6 reasons  $7 resources  $8 attempts
-- Rows: deliveries ended; fewer than given means a lease is lost and the caller rolls back.
-- Index delivery_pkey. Outcome and delete are one statement: none can be without the other.
WITH ended AS (
  DELETE FROM oncehook.delivery d
   USING unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::int[])
         AS q(event_id, handler_id, lease_token, result, decided_by, reason, resource, attempts)
   WHERE d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.state = 'leased' AND d.lease_token = q.lease_token
  RETURNING d.event_id, d.handler_id, d.run, d.generation, q.result, q.decided_by, q.reason, q.resource, q.attempts
)
INSERT INTO oncehook.outcome (event_id, handler_id, run, generation, result, decided_by, reason, resource, attempts, finished_at)
SELECT event_id, handler_id, run, generation, result, decided_by, reason, resource, attempts, clock_timestamp()
  FROM ended ORDER BY event_id, handler_id
