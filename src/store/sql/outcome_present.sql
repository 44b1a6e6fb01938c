-- outcome_present: which of these runs have an outcome already.
-- Run by store::locked::begin after the rows are locked, so that no other can be writing one.
-- $1 event_ids  $2 handler_ids  $3 runs
-- Index outcome_DAY_pkey. LIMIT keeps the look-up below the join: without it the planner read every
-- outcome of every day for each batch (1.3 ms at 15,000 outcomes, and growing with them).
SELECT o.event_id, o.handler_id
  FROM unnest($1::uuid[], $2::int[], $3::smallint[]) AS q(event_id, handler_id, run)
 CROSS JOIN LATERAL (SELECT event_id, handler_id FROM oncehook.outcome
                      WHERE event_id = q.event_id AND handler_id = q.handler_id AND run = q.run LIMIT 1) o
