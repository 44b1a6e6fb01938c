-- handler_rename: `was` gives a handler a new name; its deliveries and outcomes stay its own.
-- Run by store::registry::register_handlers, under the registry lock.
-- $1 old name  $2 new name
-- Rows: 1 renamed; 0 there is no such handler, or the new name exists already.
UPDATE oncehook.handler SET name = $2, former_names = array_append(former_names, $1)
 WHERE name = $1 AND NOT EXISTS (SELECT FROM oncehook.handler WHERE name = $2)
