-- verify_delivery_run: deliveries that are not the run after the last outcome, or have not its
-- effect key's generation.
-- Run by store::verify.
-- $1 examples
-- Rows: findings. Index outcome_DAY_pkey, one probe per delivery.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT d.event_id, d.handler_id, d.run::int AS run,
               CASE WHEN d.run <= l.run THEN 'live, and run ' || l.run || ' has an outcome: ' || l.result
                    WHEN d.run <> coalesce(l.run, 0) + 1 THEN 'live, and the last outcome is of run ' || coalesce(l.run, 0)
                    WHEN d.generation <> coalesce(l.generation + (l.result = 'succeeded')::int, 0)
                      THEN format('generation %s after %s', d.generation, coalesce(format('generation %s, %s', l.generation, l.result), 'none'))
               END AS detail
          FROM oncehook.delivery d
          LEFT JOIN LATERAL (SELECT o.run, o.generation, o.result FROM oncehook.outcome o
                              WHERE o.event_id = d.event_id AND o.handler_id = d.handler_id ORDER BY o.run DESC LIMIT 1) l ON true) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
