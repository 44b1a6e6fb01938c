-- bulk_count: how many finished runs fit a filter, by source, handler and result.
-- Run by store::bulk, before anything is run again. The filter is that of bulk_page.
-- $1 source id  $2 type as a LIKE pattern  $3 handler id  $4 results  $5 received since  $6 received until, or NULL for now
SELECT s.name AS source, h.name AS handler, o.result, count(*) AS runs
  FROM oncehook.event e
  JOIN oncehook.source s ON s.id = e.source_id
 CROSS JOIN LATERAL (SELECT DISTINCT ON (handler_id) handler_id, run, result FROM oncehook.outcome WHERE event_id = e.id ORDER BY handler_id, run DESC) o
  JOIN oncehook.handler h ON h.id = o.handler_id AND h.retired_at IS NULL
 WHERE e.id >= oncehook.uuid7_floor($5) AND e.id < oncehook.uuid7_floor(coalesce($6::timestamptz, now()))
   AND ($1::int IS NULL OR e.source_id = $1) AND ($2::text IS NULL OR e.type LIKE $2) AND ($3::int IS NULL OR h.id = $3)
   AND o.result = ANY ($4::text[])
   AND NOT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = h.id)
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
