-- bulk_page: finished runs that a bulk replay means, in the order of their events.
-- Run by store::bulk::page.
-- $1 source id  $2 type as a LIKE pattern  $3 handler id  $4 results  $5 received since  $6 received until
-- $7 $8 after this event and handler  $9 limit  $10 finished until: the start of the bulk replay
-- $11 the last event to read: bulk_reach's, or NULL
-- Rows: the last run of each (event, handler) that is not live. Index event_DAY_pkey (pruned by the id's
-- time), outcome_DAY_pkey and delivery_pkey once per event.
SELECT e.id, s.id AS source_id, s.name AS source, s.first_name, e.key, k.raw_digest, k.first_seen, h.id AS handler_id, h.name AS handler, o.run, o.result
  FROM oncehook.event e
  JOIN oncehook.source s ON s.id = e.source_id
  JOIN oncehook.event_key k ON k.source_id = e.source_id AND k.key = e.key
 CROSS JOIN LATERAL (SELECT DISTINCT ON (handler_id) handler_id, run, result, finished_at FROM oncehook.outcome WHERE event_id = e.id ORDER BY handler_id, run DESC) o
  JOIN oncehook.handler h ON h.id = o.handler_id AND h.retired_at IS NULL
 WHERE e.id >= $7 AND (e.id, h.id) > ($7, $8)
   AND e.id >= oncehook.uuid7_floor($5) AND e.id < oncehook.uuid7_floor($6) AND e.id <= coalesce($11::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   AND ($1::int IS NULL OR e.source_id = $1) AND ($2::text IS NULL OR e.type LIKE $2) AND ($3::int IS NULL OR h.id = $3)
   AND o.result = ANY ($4::text[]) AND o.finished_at <= $10
   AND NOT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = h.id)
 ORDER BY e.id, h.id LIMIT $9
