-- effect_tries: how many tries there were under the effect key of a live run.
-- Run by store::effects::tries, under the row's lock.
-- $1 event_id  $2 handler_id  $3 run  $4 generation
-- Rows: 1; a run before this one under the same key counts as one try.
-- Index attempt_DAY_event_id_idx, outcome_DAY_pkey.
SELECT (SELECT count(*) FROM oncehook.attempt
         WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND verdict NOT IN ('evidence', 'probe'))
     + (SELECT count(*) FROM oncehook.outcome
         WHERE event_id = $1 AND handler_id = $2 AND run < $3 AND generation = $4) AS tries
