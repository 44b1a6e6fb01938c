-- handler_register: makes sure that a handler has a row, and one that its caps are kept by: a node of
-- before migration V4 may have made the first without the second.
-- Run by store::registry::register_handlers, under the registry lock.
-- $1 name
-- Rows: id, first name, and whether it is retired. None when the name belongs to a handler that
-- was renamed: a second one would share its effect keys and run again what it has done.
WITH made AS (
  INSERT INTO oncehook.handler (name, first_name)
  SELECT $1, $1
   WHERE NOT EXISTS (SELECT FROM oncehook.handler WHERE (first_name = $1 OR $1 = ANY (former_names)) AND name <> $1)
  ON CONFLICT (name) DO NOTHING
  RETURNING id, first_name, retired_at IS NOT NULL AS retired
), cap AS (
  INSERT INTO oncehook.handler_cap (handler_id)
  SELECT id FROM made UNION ALL SELECT id FROM oncehook.handler WHERE name = $1
  ON CONFLICT DO NOTHING
)
SELECT id, first_name, retired FROM made
UNION ALL
SELECT id, first_name, retired_at IS NOT NULL FROM oncehook.handler WHERE name = $1
LIMIT 1
