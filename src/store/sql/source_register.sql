-- source_register: makes sure that a source has a row.
-- Run by store::registry::register_sources, under the registry lock.
-- $1 name  $2 recipe
-- Rows: id, first name and stored recipe, whether it was there before or not. None when the name
-- belongs to a source that was renamed: a second one would know none of its keys.
WITH made AS (
  INSERT INTO oncehook.source (name, first_name, recipe)
  SELECT $1, $1, $2
   WHERE NOT EXISTS (SELECT FROM oncehook.source WHERE (first_name = $1 OR $1 = ANY (former_names)) AND name <> $1)
  ON CONFLICT (name) DO NOTHING
  RETURNING id, first_name, recipe
)
SELECT id, first_name, recipe FROM made
UNION ALL
SELECT id, first_name, recipe FROM oncehook.source WHERE name = $1
LIMIT 1
