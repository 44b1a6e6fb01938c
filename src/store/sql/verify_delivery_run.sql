-- verify_delivery_run: deliveries that are not the run after the last outcome, or have not its
-- effect key's generation.
-- Run by store::verify.
-- $1 examples
-- Rows: findings. Index outcome_DAY_pkey, one probe per delivery. An operation's first run has the generation of its key, which
-- goes up when the key is renewed.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT d.event_id, d.handler_id, d.run::int AS run,
               CASE WHEN d.run <= l.run THEN 'live, and run ' || l.run || ' has an outcome: ' || l.result
                    WHEN d.run <> coalesce(l.run, 0) + 1 THEN 'live, and the last outcome is of run ' || coalesce(l.run, 0)
                    WHEN d.generation <> coalesce(l.generation + (l.result = 'succeeded')::int, k.generation, 0)
                      THEN format('generation %s after %s', d.generation, coalesce('generation ' || l.generation || ', ' || l.result, 'none, and its key has ' || k.generation, 'none'))
               END AS detail
          FROM oncehook.delivery d
          LEFT JOIN LATERAL (SELECT o.run, o.generation, o.result FROM oncehook.outcome o
                              WHERE o.event_id = d.event_id AND o.handler_id = d.handler_id ORDER BY o.run DESC LIMIT 1) l ON true
          LEFT JOIN LATERAL (SELECT k.generation
                              FROM oncehook.event e JOIN oncehook.event_key k ON k.source_id = e.source_id AND k.key = e.key
                              JOIN oncehook.handler h ON h.id = d.handler_id AND h.operation_of = e.source_id
                             WHERE e.id = d.event_id AND l.run IS NULL AND k.event_id = e.id LIMIT 1) k ON true) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
