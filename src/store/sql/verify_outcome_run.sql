-- verify_outcome_run: outcomes without the run before, or without its effect key's generation.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Index outcome_DAY_pkey, a probe per outcome of a replay only. An operation's first run has the generation
-- of its key, or a lower one if the key was renewed since.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT o.event_id, o.handler_id, o.run::int AS run,
               CASE WHEN o.run < 1 THEN 'runs begin with 1'
                    WHEN o.run > 1 AND p.result IS NULL THEN 'the run before it has no outcome'
                    WHEN o.generation <> coalesce(p.generation + (p.result = 'succeeded')::int,
                                               CASE WHEN k.named OR o.generation >= k.generation THEN k.generation ELSE o.generation END, 0)
                      THEN format('generation %s after %s', o.generation, coalesce('generation ' || p.generation || ', ' || p.result, 'none, and its key has ' || k.generation, 'none'))
               END AS detail
          FROM oncehook.outcome o
          LEFT JOIN LATERAL (SELECT p.generation, p.result FROM oncehook.outcome p
                              WHERE o.run > 1 AND p.event_id = o.event_id AND p.handler_id = o.handler_id AND p.run = o.run - 1
                              LIMIT 1) p ON true
          LEFT JOIN LATERAL (SELECT k.generation, k.event_id = e.id AS named
                              FROM oncehook.event e JOIN oncehook.event_key k ON k.source_id = e.source_id AND k.key = e.key
                              JOIN oncehook.handler h ON h.id = o.handler_id AND h.operation_of = e.source_id
                             WHERE e.id = o.event_id AND o.run = 1 LIMIT 1) k ON true
         WHERE o.event_id >= oncehook.uuid7_floor($2)) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
