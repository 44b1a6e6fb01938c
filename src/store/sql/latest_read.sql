-- latest_read: what was applied last to an object.
-- Run by store::latest::read, before a call is sent; its lane keeps others away meanwhile.
-- $1 handler_id  $2 entity  $3 where versions are read from
-- Rows: 0 or 1. Index latest_pkey.
SELECT version::text FROM oncehook.latest WHERE handler_id = $1 AND entity = $2 AND read_from = $3
