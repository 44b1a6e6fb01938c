-- replay_many_page: finished runs that fit a filter, in the order of their events.
-- Run by store::replay_many, page by page.
-- $1 source name  $2 type as a LIKE pattern  $3 handler name  $4 results  $5 received since  $6 received until
-- $7 $8 after this event and handler  $9 limit
-- Rows: the last run of each (event, handler) that is not live. Index event_DAY_pkey (pruned by the id's
-- time), outcome_DAY_pkey and delivery_pkey once per event.
SELECT e.id, s.id AS source_id, s.name AS source, s.first_name, e.key, k.raw_digest, k.first_seen, h.id AS handler_id, h.name AS handler, o.run, o.result
  FROM oncehook.event e
  JOIN oncehook.source s ON s.id = e.source_id
  JOIN oncehook.event_key k ON k.source_id = e.source_id AND k.key = e.key
 CROSS JOIN LATERAL (SELECT DISTINCT ON (handler_id) handler_id, run, result FROM oncehook.outcome WHERE event_id = e.id ORDER BY handler_id, run DESC) o
  JOIN oncehook.handler h ON h.id = o.handler_id AND h.retired_at IS NULL
 WHERE e.id >= $7 AND (e.id, h.id) > ($7, $8)
   AND e.id >= oncehook.uuid7_floor($5) AND e.id < oncehook.uuid7_floor($6)
   AND ($1::text IS NULL OR s.name = $1) AND ($2::text IS NULL OR e.type LIKE $2) AND ($3::text IS NULL OR h.name = $3)
   AND o.result = ANY ($4::text[])
   AND NOT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = h.id)
 ORDER BY e.id, h.id LIMIT $9
