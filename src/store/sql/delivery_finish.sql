-- delivery_finish: the holders of leases end their deliveries.
-- Run by store::delivery::finish, in the transaction that holds the effects.
-- $1 event_ids  $2 handler_ids  $3 lease_tokens  $4 results  $5 decided_by  $6 reasons  $7 resources  $8 attempts
-- $9 external_ids
-- Rows: deliveries ended; fewer than given means a lease is lost and the caller rolls back.
-- Index delivery_pkey, then rows by address, as in delivery_claim; the caller holds their locks.
-- Outcome and delete are one statement: none can be without the other.
WITH ended AS (
  DELETE FROM oncehook.delivery d
   USING unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::int[],
              $9::text[])
         AS q(event_id, handler_id, lease_token, result, decided_by, reason, resource, attempts, external_id)
   WHERE d.ctid = ANY (ARRAY(
     SELECT x.ctid FROM unnest($1::uuid[], $2::int[], $3::uuid[]) AS k(event_id, handler_id, lease_token)
      CROSS JOIN LATERAL (SELECT ctid FROM oncehook.delivery
                           WHERE event_id = k.event_id AND handler_id = k.handler_id AND lease_token = k.lease_token
                           LIMIT 1) x))
     AND d.event_id = q.event_id AND d.handler_id = q.handler_id AND d.lease_token = q.lease_token
  RETURNING d.event_id, d.handler_id, d.run, d.generation, q.result, q.decided_by, q.reason, q.resource, q.attempts,
            d.lease_token, q.external_id
)
INSERT INTO oncehook.outcome (event_id, handler_id, run, generation, result, decided_by, reason, resource, attempts,
                              finished_at, lease_token, external_id)
SELECT event_id, handler_id, run, generation, result, decided_by, reason, resource, attempts, clock_timestamp(), lease_token,
       external_id
  FROM ended ORDER BY event_id, handler_id
