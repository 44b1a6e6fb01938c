-- attempt_evidence: an answer that came after its lease was lost.
-- Run by store::delivery::record_evidence, in a transaction of its own that holds the lock of the
-- delivery's row, if there still is one: it is somebody else's, or uncertain.
-- $1 event_id  $2 handler_id  $3 run  $4 lease_token  $5 number of the try  $6 answer  $7 age of the try (seconds)
-- $8 the result it stands for, NULL if it is none  $9 what was made
-- Rows: 1 recorded; 0 this try itself is what was settled: the answer to its COMMIT was lost, and
-- its writer comes with it once more. No later try has its number.
-- Index outcome_DAY_pkey, attempt_event.
INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, started_at, ended_at, verdict, error, answer, resource)
SELECT $1, $2, $3, $4, clock_timestamp() - make_interval(secs => $7::float8), clock_timestamp(), 'evidence', $6, $8, $9
 WHERE NOT EXISTS (SELECT FROM oncehook.outcome
                    WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND attempts = $5 AND decided_by = 'handler')
   AND NOT EXISTS (SELECT FROM oncehook.attempt WHERE event_id = $1 AND lease_token = $4 AND verdict <> 'lost')
