-- bulk_reach: how far a page reads, so that one page's time does not depend on how few events fit.
-- Run by store::bulk::page, before bulk_page in the same snapshot.
-- $1 from this event on  $2 received since  $3 received until  $4 events before the last one of a page
-- Rows: the last event that is read; none when the page reads to the end. Index event_DAY_pkey.
SELECT id FROM oncehook.event
 WHERE id >= $1 AND id >= oncehook.uuid7_floor($2) AND id < oncehook.uuid7_floor($3)
 ORDER BY id OFFSET $4 LIMIT 1
