-- event_payloads: what handlers outside SQL get of their events.
-- Run by store::handling::payloads.
-- $1 event_ids
-- Rows: those whose payload is still there. Index event_DAY_pkey, request_DAY_pkey.
SELECT q.event_id, e.received_at, e.body, e.headers
  FROM unnest($1::uuid[]) AS q(event_id)
 CROSS JOIN LATERAL (
   SELECT r.received_at, substr(r.body, e.item_offset + 1, e.item_length) AS body, r.headers
     FROM oncehook.event e JOIN oncehook.request r ON r.id = e.request_id
    WHERE e.id = q.event_id LIMIT 1) e
