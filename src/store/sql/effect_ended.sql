-- effect_ended: how the last run under an effect key ended.
-- Run by store::effects::ended, in a statement after the one that found it not live.
-- $1 event_id  $2 handler_id  $3 generation
-- Rows: 0 or 1. Index outcome_DAY_pkey.
SELECT run, result, decided_by, resource FROM oncehook.outcome
 WHERE event_id = $1 AND handler_id = $2 AND generation = $3 ORDER BY run DESC LIMIT 1
