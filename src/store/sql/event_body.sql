-- event_body: the exact bytes of one event's item.
-- Run by store::query::body.
-- $1 event_id
SELECT substr(r.body, e.item_offset + 1, e.item_length) FROM oncehook.event e JOIN oncehook.request r ON r.id = e.request_id WHERE e.id = $1
