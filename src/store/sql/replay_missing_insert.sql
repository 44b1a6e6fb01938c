-- replay_missing_insert: first runs for events that came before their handler.
-- Run by store::replay::missing, with the audit row in the same transaction.
-- $1 handler_id  $2 event_ids
-- Rows: deliveries made; an event that got one meanwhile is left alone.
INSERT INTO oncehook.delivery (event_id, handler_id)
SELECT e, $1 FROM unnest($2::uuid[]) AS u(e)
 WHERE NOT EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = u.e AND o.handler_id = $1)
 ORDER BY e
ON CONFLICT DO NOTHING
RETURNING event_id
