-- verify_event_request: events whose request is not there, is another source's, or is shorter than
-- the item.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. The length of a body is known without reading it; OFFSET 0 keeps the bodies
-- themselves out of the join.
SELECT count(*) OVER () AS found, e.id AS event_id, e.source_id, e.key, NULL::int AS handler_id, NULL::int AS run,
       CASE WHEN r.id IS NULL THEN 'request ' || e.request_id || ' is not stored'
            WHEN r.source_id <> e.source_id THEN 'request ' || e.request_id || ' came to another source'
            ELSE format('its bytes %s..%s lie outside the body, which has %s', e.item_offset, e.item_offset::bigint + e.item_length, r.size)
       END AS detail
  FROM oncehook.event e
  LEFT JOIN (SELECT id, source_id, octet_length(body) AS size FROM oncehook.request
              WHERE id >= oncehook.uuid7_floor($2) OFFSET 0) r ON r.id = e.request_id
 WHERE e.id >= oncehook.uuid7_floor($2)
   AND (r.id IS NULL OR r.source_id <> e.source_id OR e.item_offset < 0 OR e.item_length < 0
        OR e.item_offset::bigint + e.item_length > r.size)
 LIMIT (SELECT $1::bigint)
