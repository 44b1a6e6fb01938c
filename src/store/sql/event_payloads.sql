-- event_payloads: what handlers outside SQL get of their events, a part at a time.
-- Run by store::handling::payloads.
-- $1 event_ids  $2 bytes of bodies at most, the first one's aside
-- Rows: one for each of the first of the events, in the order given; without a body where the payload is gone. The
-- others are asked for again. Index event_DAY_pkey, request_DAY_pkey.
SELECT s.event_id, r.received_at, substr(r.body, s.item_offset + 1, s.item_length) AS body, r.headers
  FROM (SELECT q.event_id, q.at, e.request_id, e.item_offset, e.item_length, sum(e.item_length) OVER (ORDER BY q.at) AS bytes
          FROM unnest($1::uuid[]) WITH ORDINALITY AS q(event_id, at)
          LEFT JOIN LATERAL (SELECT request_id, item_offset, item_length FROM oncehook.event WHERE id = q.event_id LIMIT 1) e ON true) s
  LEFT JOIN LATERAL (SELECT received_at, body, headers FROM oncehook.request WHERE id = s.request_id LIMIT 1) r ON true
 WHERE s.bytes <= $2::bigint OR s.bytes IS NULL OR s.at = 1
