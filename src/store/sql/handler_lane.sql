-- handler_lane: keeps where a handler's lanes are read from, for replays.
-- Run by store::registry::register_handlers, under the registry lock.
-- $1 handler id  $2 entity, account or json:POINTER; empty for no lanes
-- Rows: 1 changed; 0 it is stored so already.
UPDATE oncehook.handler SET lane_by = nullif($2, '') WHERE id = $1 AND lane_by IS DISTINCT FROM nullif($2, '')
