-- bulk_insert: starts a bulk replay. Its time bounds what it means, by this database's clock.
-- Run by store::bulk, behind bulk_turn and bulk_overlap, with its audit row.
-- $1 source id  $2 type  $3 handler id  $4 results  $5 received since  $6 received until, or NULL for now
-- $7 force  $8 verify bytes  $9 rate  $10 reason  $11 actor
-- Rows: its number.
INSERT INTO oncehook.bulk_replay (source_id, type, handler_id, results, since, until, force, verify_bytes, rate, reason, actor, started_at)
SELECT $1, $2, $3, $4, $5, coalesce($6::timestamptz, t), $7, $8, $9, $10, $11, t FROM clock_timestamp() AS t
RETURNING id
