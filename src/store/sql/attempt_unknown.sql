-- attempt_unknown: whether the result of a call of this run is not known.
-- Run by store::uncertain, before an operation whose calls are sent again ends otherwise than done.
-- $1 event_id  $2 handler_id  $3 run
-- Rows: 1 there is such a call; 0 there is none. Index attempt_DAY_event_id_idx.
SELECT 1 FROM oncehook.attempt
 WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND verdict IN ('unknown', 'lost') LIMIT 1
