-- verify_missing: events that match a handler's patterns and never had a delivery for it.
-- Run by store::verify, after verify_types.
-- $1 examples  $2 received since  $3 handler ids  $4 source ids  $5 types: what goes where
-- Rows: findings. Index delivery_pkey, outcome_DAY_pkey, probed only where the routes lack the handler.
SELECT count(*) OVER () AS found, e.id AS event_id, e.source_id, e.key, q.handler_id, NULL::int AS run,
       'it matches the handler''s patterns and never had a delivery for it'::text AS detail
  FROM unnest($3::int[], $4::int[], $5::text[]) AS q(handler_id, source_id, type)
  JOIN oncehook.event e ON e.source_id = q.source_id AND coalesce(e.type, '') = q.type
 WHERE e.id >= oncehook.uuid7_floor($2) AND (e.state IS NULL OR e.state = 'unrecognized') AND q.handler_id <> ALL (e.routes)
   AND (SELECT true FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = q.handler_id LIMIT 1) IS NULL
   AND (SELECT true FROM oncehook.outcome o WHERE o.event_id = e.id AND o.handler_id = q.handler_id LIMIT 1) IS NULL
 LIMIT (SELECT $1::bigint)
