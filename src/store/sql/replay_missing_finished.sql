-- replay_missing_finished: takes first runs back that another had made and finished while our
-- insert waited for it.
-- Run by store::missing, in the statement after replay_missing_insert.
-- $1 handler_id  $2 event_ids of the deliveries just made
-- Rows: deliveries taken back. Index delivery_pkey, outcome_DAY_pkey.
DELETE FROM oncehook.delivery d
 USING unnest($2::uuid[]) AS u(event_id)
 WHERE d.event_id = u.event_id AND d.handler_id = $1
   AND EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = u.event_id AND o.handler_id = $1)
RETURNING d.event_id
