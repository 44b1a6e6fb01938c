-- bulk_advance: moves the cursor behind a page, in the transaction that opened its runs; marks the end.
-- Run by store::bulk::page, under the lock of bulk_lock.
-- $1 number  $2 $3 the last event and handler of the page  $4 opened  $5 refused  $6 refusals to keep
-- $7 seconds until the next page  $8 whether it was the last one
-- Rows: 1, what was done altogether.
UPDATE oncehook.bulk_replay
   SET after_event = $2, after_handler = $3, replayed = replayed + $4, refused = refused + $5, refusals = refusals || $6::jsonb,
       next_at = clock_timestamp() + make_interval(secs => $7),
       state = CASE WHEN $8 THEN 'complete' ELSE state END, ended_at = CASE WHEN $8 THEN clock_timestamp() END
 WHERE id = $1
RETURNING replayed, refused
