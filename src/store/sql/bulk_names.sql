-- bulk_names: the ids of a source and a handler: a rename does not change what a bulk replay means.
-- Run by store::bulk.
-- $1 source name, or NULL  $2 handler name, or NULL
-- Rows: 1; NULL for a name that is not known or not given.
SELECT (SELECT id FROM oncehook.source WHERE name = $1) AS source_id, (SELECT id FROM oncehook.handler WHERE name = $2) AS handler_id
