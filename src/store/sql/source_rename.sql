-- source_rename: `was` gives a source a new name; its keys and events stay its own.
-- Run by store::registry::register_sources, under the registry lock.
-- $1 old name  $2 new name
-- Rows: 1 renamed; 0 there is no such source, or the new name exists already.
UPDATE oncehook.source SET name = $2, former_names = array_append(former_names, $1)
 WHERE name = $1 AND NOT EXISTS (SELECT FROM oncehook.source WHERE name = $2)
