-- replay_missing_insert: first runs for events that came before their handler.
-- Run by store::missing, with the audit row in the same transaction. Those that have been
-- finished meanwhile are taken back by replay_missing_finished, whose snapshot is taken later.
-- $1 handler_id  $2 event_ids  $3 lanes
-- Rows: deliveries made; an event that got one meanwhile is left alone.
INSERT INTO oncehook.delivery (event_id, handler_id, state, lane, lane_seq)
SELECT e, $1, CASE WHEN lane IS NULL THEN 'ready' ELSE 'blocked' END, lane,
       CASE WHEN lane IS NOT NULL THEN nextval('oncehook.lane_seq') END
  FROM unnest($2::uuid[], $3::text[]) AS u(e, lane) ORDER BY e
ON CONFLICT DO NOTHING
RETURNING event_id
