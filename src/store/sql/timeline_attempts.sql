-- timeline_attempts: failed and lost tries of one event, the last hundred.
-- $1 event_id
-- Index attempt_DAY_event_id_idx.
SELECT * FROM (
  SELECT h.name, a.run, a.verdict, a.error, a.started_at, a.ended_at, told.source AS told_source, told.key AS told_key
    FROM oncehook.attempt a JOIN oncehook.handler h ON h.id = a.handler_id
    LEFT JOIN LATERAL (SELECT s.name AS source, e.key FROM oncehook.event e JOIN oncehook.source s ON s.id = e.source_id
                        WHERE e.id = a.told_by LIMIT 1) told ON a.told_by IS NOT NULL
   WHERE a.event_id = $1 ORDER BY a.ended_at DESC LIMIT 100
) last ORDER BY ended_at
