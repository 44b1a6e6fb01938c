-- operation_ended: which of these events have nothing at work any more.
-- Run by store::operation for those who wait; they read the record when it says so.
-- $1 event_ids
-- Rows: the ids without a delivery, or with one whose result is not known or that waits for a person: its client is
-- told so and waits no longer.
-- Index delivery_pkey.
SELECT u.event_id FROM unnest($1::uuid[]) AS u(event_id)
 WHERE NOT EXISTS (SELECT FROM oncehook.delivery d
                    WHERE d.event_id = u.event_id AND d.state NOT IN ('uncertain', 'held'))
