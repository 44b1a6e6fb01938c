-- verify_outcome_event: outcomes without their event or handler, and first runs that nobody
-- ordered.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Index audit_subject for outcomes off the routes only.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT o.event_id, o.handler_id, o.run::int AS run,
               CASE WHEN e.id IS NULL THEN 'its event is not stored'
                    WHEN h.id IS NULL THEN format('handler %s is not registered', o.handler_id)
                    WHEN o.handler_id <> ALL (e.routes)
                     AND NOT EXISTS (SELECT FROM oncehook.audit a
                                      WHERE a.subject = o.event_id::text AND a.action = 'event.replay.missing'
                                        AND a.after ->> 'handler' = ANY (h.former_names || ARRAY[h.name, h.first_name]))
                      THEN 'not in the event''s routes, and the audit has no replay --missing'
               END AS detail
          FROM oncehook.outcome o
          LEFT JOIN oncehook.handler h ON h.id = o.handler_id
          LEFT JOIN oncehook.event e ON e.id = o.event_id AND e.id >= oncehook.uuid7_floor($2)
         WHERE o.event_id >= oncehook.uuid7_floor($2)) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
