-- uncertain_wake: a late answer came; whoever looks at uncertain deliveries reads it at once.
-- Run by store::uncertain::wake, in the transaction that keeps the answer and holds the row's lock.
-- $1 event_id  $2 handler_id  $3 run
-- Rows: 1 uncertain; 0 it is leased, ready or finished, and the answer waits.
-- Index delivery_pkey.
UPDATE oncehook.delivery SET run_at = clock_timestamp()
 WHERE event_id = $1 AND handler_id = $2 AND run = $3 AND state = 'uncertain'
