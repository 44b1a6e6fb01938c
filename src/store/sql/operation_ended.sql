-- operation_ended: which of these operations are not at work any more.
-- Run by store::operation for those who wait; they read the record when it says so.
-- $1 event_ids
-- Index delivery_pkey.
SELECT u.event_id FROM unnest($1::uuid[]) AS u(event_id)
 WHERE NOT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = u.event_id)
