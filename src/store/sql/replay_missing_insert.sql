-- replay_missing_insert: first runs for events that came before their handler.
-- Run by store::replay::missing, with the audit row in the same transaction. Those that have been
-- finished meanwhile are taken back by replay_missing_finished, whose snapshot is taken later.
-- $1 handler_id  $2 event_ids
-- Rows: deliveries made; an event that got one meanwhile is left alone.
INSERT INTO oncehook.delivery (event_id, handler_id)
SELECT e, $1 FROM unnest($2::uuid[]) AS u(e) ORDER BY e
ON CONFLICT DO NOTHING
RETURNING event_id
