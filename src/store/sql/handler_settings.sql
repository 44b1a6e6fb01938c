-- handler_settings: keeps what commands must know of a handler: where its lanes are read from, for replays,
-- and whether its receiver can be asked, for decisions.
-- Run by store::registry::register_handlers, under the registry lock.
-- $1 handler id  $2 entity, account or json:POINTER; empty for no lanes  $3 retry, probe or hold
-- Rows: 1 changed; 0 it is stored so already.
UPDATE oncehook.handler SET lane_by = nullif($2, ''), on_unknown = $3
 WHERE id = $1 AND (lane_by, on_unknown) IS DISTINCT FROM (nullif($2, ''), $3)
