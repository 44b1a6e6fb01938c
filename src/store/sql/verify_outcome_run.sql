-- verify_outcome_run: outcomes without the run before, or without its effect key's generation.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Index outcome_DAY_pkey, a probe per outcome of a replay only.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT o.event_id, o.handler_id, o.run::int AS run,
               CASE WHEN o.run < 1 THEN 'runs begin with 1'
                    WHEN o.run > 1 AND p.result IS NULL THEN 'the run before it has no outcome'
                    WHEN o.generation <> coalesce(p.generation + (p.result = 'succeeded')::int, 0)
                      THEN format('generation %s after %s', o.generation, coalesce(format('generation %s, %s', p.generation, p.result), 'none'))
               END AS detail
          FROM oncehook.outcome o
          LEFT JOIN LATERAL (SELECT p.generation, p.result FROM oncehook.outcome p
                              WHERE o.run > 1 AND p.event_id = o.event_id AND p.handler_id = o.handler_id AND p.run = o.run - 1
                              LIMIT 1) p ON true
         WHERE o.event_id >= oncehook.uuid7_floor($2)) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
