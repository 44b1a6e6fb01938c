-- effect_told: keeps what an event says of a call, once.
-- Run by store::effects::told, under the lock of the delivery's row or of its place (effect_reserve).
-- $1 event_id  $2 handler_id  $3 run  $4 lease_token of the call that it decides, NULL for every call or none
-- $5 who says it, for people  $6 answer  $7 resource  $8 external_id  $9 the event that says it
-- Rows: 1 kept; 0 the same was said before. Index attempt_DAY_event_id_idx.
INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, started_at, ended_at, verdict, error, answer, resource, external_id, told_by)
SELECT $1, $2, $3, $4, clock_timestamp(), clock_timestamp(), 'evidence', $5, $6, $7, $8, $9
 WHERE NOT EXISTS (SELECT FROM oncehook.attempt
                    WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND verdict = 'evidence' AND told_by IS NOT NULL
                      AND answer = $6 AND resource IS NOT DISTINCT FROM $7)
