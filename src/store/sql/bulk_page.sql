-- bulk_page: finished runs that a bulk replay means, in the order of their events.
-- Run by store::bulk::page.
-- $1 source id  $2 type as a LIKE pattern  $3 handler id  $4 results  $5 received since  $6 received until
-- $7 $8 after this event and handler  $9 limit  $10 finished until: the start of the bulk replay
-- $11 the last event to read: bulk_reach's, or NULL
-- Rows: the last run of each (event, handler) that is not live. Index event_DAY_pkey (pruned by the id's
-- time), outcome_DAY_pkey once per event; for what fits, handler_pkey, event_key_NN_pkey and delivery_pkey.
-- Each OFFSET 0 keeps a look-up one: planned as joins, every event's key was read, every event's outcomes once
-- per handler, and open deliveries from the first one on (docs/performance.md).
SELECT e.id, s.id AS source_id, s.name AS source, s.first_name, e.key, k.raw_digest, k.first_seen, o.handler_id, h.name AS handler, o.run
  FROM oncehook.event e
  JOIN oncehook.source s ON s.id = e.source_id
 CROSS JOIN LATERAL (SELECT DISTINCT ON (handler_id) handler_id, run, result, finished_at FROM oncehook.outcome WHERE event_id = e.id ORDER BY handler_id, run DESC) o
 CROSS JOIN LATERAL (SELECT name FROM oncehook.handler WHERE id = o.handler_id AND retired_at IS NULL OFFSET 0) h
 CROSS JOIN LATERAL (SELECT raw_digest, first_seen FROM oncehook.event_key WHERE source_id = e.source_id AND key = e.key AND event_id = e.id AND o.run > 0 OFFSET 0) k
 WHERE e.id >= $7 AND (e.id, o.handler_id) > ($7, $8)
   AND e.id >= oncehook.uuid7_floor($5) AND e.id < oncehook.uuid7_floor($6) AND e.id <= coalesce($11::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   AND ($1::int IS NULL OR e.source_id = $1) AND ($2::text IS NULL OR e.type LIKE $2) AND ($3::int IS NULL OR o.handler_id = $3)
   AND o.result = ANY ($4::text[]) AND o.finished_at <= $10
   AND NOT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = o.handler_id OFFSET 0)
 ORDER BY e.id, o.handler_id LIMIT $9
