-- uncertain_evidence: the late answer, or the word of an event, that ends an uncertain delivery, if there is one.
-- Run by store::uncertain::evidence, for store::resolve too. Under the row's lock nothing can be added meanwhile.
-- $1 event_id  $2 handler_id  $3 run  $4 lease_token of the call, NULL where none is in question
-- Rows: 0 or 1. That it was done holds for any try of the run, since all have one effect key; a "no"
-- is known of its own try only.
-- Index attempt_DAY_event_id_idx.
SELECT answer, resource, error, ended_at, external_id, told_by IS NOT NULL AS by_event, status::int AS status, headers, body FROM oncehook.attempt
 WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND verdict = 'evidence'
   AND (answer = 'succeeded' OR (answer IS NOT NULL AND lease_token = $4))
 ORDER BY answer = 'succeeded' DESC, ended_at LIMIT 1
