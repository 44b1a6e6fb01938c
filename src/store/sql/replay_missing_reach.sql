-- replay_missing_reach: how far a page reads, so that its time does not depend on how few events fit.
-- Run by store::missing, before replay_missing.
-- $1 after this event  $2 received since  $3 events before the last one of a page
-- Rows: the last event that is read; none when the page reads to the end. Index event_DAY_pkey.
SELECT id FROM oncehook.event
 WHERE id > $1 AND id >= oncehook.uuid7_floor($2)
 ORDER BY id OFFSET $3 LIMIT 1
