-- bulk_list: bulk replays as they stand: what has not ended, then the newest.
-- Run by store::bulk.
-- $1 a number, or NULL for all  $2 limit
-- Rows: all columns and names; the refused ones only for a number.
SELECT b.id, b.state, s.name AS source, h.name AS handler, b.type, b.results, b.since, b.until, b.force, b.verify_bytes, b.rate,
       b.reason, b.actor, b.started_at, b.ended_at, b.after_event, b.replayed, b.refused,
       CASE WHEN $1::bigint IS NULL THEN '[]'::jsonb ELSE b.refusals END AS refusals
  FROM oncehook.bulk_replay b
  LEFT JOIN oncehook.source s ON s.id = b.source_id
  LEFT JOIN oncehook.handler h ON h.id = b.handler_id
 WHERE $1::bigint IS NULL OR b.id = $1
 ORDER BY b.ended_at IS NULL DESC, b.id DESC LIMIT $2
