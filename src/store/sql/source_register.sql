-- source_register: makes sure that a source has a row.
-- Run by store::registry::register_sources, under the registry lock.
-- $1 name  $2 recipe
-- Rows: id, first name and stored recipe, whether it was there before or not.
WITH made AS (
  INSERT INTO oncehook.source (name, first_name, recipe) VALUES ($1, $1, $2)
  ON CONFLICT (name) DO NOTHING
  RETURNING id, first_name, recipe
)
SELECT id, first_name, recipe FROM made
UNION ALL
SELECT id, first_name, recipe FROM oncehook.source WHERE name = $1
LIMIT 1
