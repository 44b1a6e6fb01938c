-- verify_response: outcomes of operations without the answer that their clients get, and answers without an outcome.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Index response_DAY_pkey, one probe per outcome of an operation; outcome_DAY_pkey, one per answer.
-- A handler may have served webhooks under its name before: only events of its operation count.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT o.event_id, o.handler_id, o.run::int AS run, 'the operation has ended, and its answer is not stored'::text AS detail
          FROM oncehook.outcome o
          JOIN oncehook.handler h ON h.id = o.handler_id AND h.operation_of IS NOT NULL
         CROSS JOIN LATERAL (SELECT e.source_id FROM oncehook.event e WHERE e.id = o.event_id LIMIT 1) e
         WHERE o.event_id >= oncehook.uuid7_floor($2) AND e.source_id = h.operation_of
           AND NOT EXISTS (SELECT FROM oncehook.response p
                            WHERE p.event_id = o.event_id AND p.handler_id = o.handler_id AND p.run = o.run)
         UNION ALL
        SELECT p.event_id, p.handler_id, p.run::int, 'an answer is stored, and its run has no outcome'
          FROM oncehook.response p
         WHERE p.event_id >= oncehook.uuid7_floor($2)
           AND NOT EXISTS (SELECT FROM oncehook.outcome o
                            WHERE o.event_id = p.event_id AND o.handler_id = p.handler_id AND o.run = p.run)) b
 LIMIT (SELECT $1::bigint)
