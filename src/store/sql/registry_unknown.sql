-- registry_unknown: a source or handler that does not stand here under the id of its registration.
-- Run by store::names::prove, on every new connection of ingest and dispatch, and by the readiness probe.
-- $1 source ids  $2 their first names  $3 handler ids  $4 their first names
-- Rows: 0 all are known; else one, with its first name. Indexes source_pkey, handler_pkey.
SELECT first_name FROM (
  SELECT q.first_name FROM unnest($1::int[], $2::text[]) AS q(id, first_name)
   WHERE NOT EXISTS (SELECT FROM oncehook.source s WHERE s.id = q.id AND s.first_name = q.first_name)
  UNION ALL
  SELECT q.first_name FROM unnest($3::int[], $4::text[]) AS q(id, first_name)
   WHERE NOT EXISTS (SELECT FROM oncehook.handler h WHERE h.id = q.id AND h.first_name = q.first_name)
) unknown LIMIT 1
