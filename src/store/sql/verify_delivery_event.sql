-- verify_delivery_event: deliveries without their event or handler, and first runs that nobody
-- ordered.
-- Run by store::verify.
-- $1 examples
-- Rows: findings. Index event_DAY_pkey, one probe per delivery; audit_subject for those off the
-- routes.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT d.event_id, d.handler_id, d.run::int AS run,
               CASE WHEN e.routes IS NULL THEN 'its event is not stored'
                    WHEN h.id IS NULL THEN format('handler %s is not registered', d.handler_id)
                    WHEN d.handler_id <> ALL (e.routes)
                     AND NOT EXISTS (SELECT FROM oncehook.audit a
                                      WHERE a.subject = d.event_id::text AND a.action = 'event.replay.missing'
                                        AND a.after ->> 'handler' = ANY (h.former_names || ARRAY[h.name, h.first_name]))
                      THEN 'not in the event''s routes, and the audit has no replay --missing'
               END AS detail
          FROM oncehook.delivery d
          LEFT JOIN oncehook.handler h ON h.id = d.handler_id
          LEFT JOIN LATERAL (SELECT e.routes FROM oncehook.event e WHERE e.id = d.event_id LIMIT 1) e ON true) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
