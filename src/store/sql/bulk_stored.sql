-- bulk_stored: an event's request as it was stored, to be checked again.
-- Run by store::bulk::page.
-- $1 event_id
-- Rows: 1, or 0 when the payload was dropped. Index event_DAY_pkey, request_DAY_pkey.
SELECT r.received_at, r.method, r.path, r.query, r.headers, r.body, e.item_offset, e.item_length
  FROM oncehook.event e JOIN oncehook.request r ON r.id = e.request_id
 WHERE e.id = $1
