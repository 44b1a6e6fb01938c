-- attempt_evidence: an answer that came after its lease was lost.
-- Run by store::uncertain::record_evidence, in a transaction of its own that holds the lock of the
-- delivery's row, if there still is one: it is somebody else's, or uncertain.
-- $1 event_id  $2 handler_id  $3 run  $4 lease_token  $5 answer  $6 age of the try (seconds)
-- $7 the result it stands for, NULL if it is none  $8 what was made
-- $9 external_id  $10 $11 $12 status, headers and body of the response that it brings, NULL if none
-- Rows: 1 recorded; 0 this try itself is what was settled: the answer to its COMMIT was lost, and
-- its writer comes with it once more. Its token tells: after a failover that forgot a lease there are
-- two tries of one number.
-- Index outcome_DAY_pkey, attempt_event.
INSERT INTO oncehook.attempt (event_id, handler_id, run, lease_token, started_at, ended_at, verdict, error, answer, resource,
                              external_id, status, headers, body)
SELECT $1, $2, $3, $4, clock_timestamp() - make_interval(secs => $6::float8), clock_timestamp(), 'evidence', $5, $7, $8,
       $9, $10::int, $11, $12
 WHERE NOT EXISTS (SELECT FROM oncehook.outcome
                    WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND lease_token = $4)
   AND NOT EXISTS (SELECT FROM oncehook.attempt WHERE event_id = $1 AND lease_token = $4 AND verdict <> 'lost' AND told_by IS NULL)
