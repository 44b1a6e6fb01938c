-- operation_list: ids of a page of operations, newest first.
-- Run by store::operation, which reads them with operation_read in the same snapshot.
-- $1 operation  $2 state  $3 created before  $4 before this id  $5 page size
-- Index event_DAY_pkey, backwards; what is not finished is found in `delivery`, however old it is.
SELECT e.id
  FROM oncehook.event e
  JOIN oncehook.handler h ON h.operation_of = e.source_id
  JOIN oncehook.source s ON s.id = e.source_id
 CROSS JOIN LATERAL (
   SELECT coalesce((SELECT CASE WHEN state = 'uncertain' THEN 'uncertain' ELSE 'processing' END
                      FROM oncehook.delivery WHERE event_id = e.id AND handler_id = h.id),
                   (SELECT CASE WHEN result IN ('dead', 'cancelled') THEN 'failed' ELSE 'completed' END
                      FROM oncehook.outcome WHERE event_id = e.id AND handler_id = h.id ORDER BY run DESC LIMIT 1),
                   'failed') AS state) w
 WHERE ($1::text IS NULL OR s.name = $1)
   AND ($3::timestamptz IS NULL OR e.id < oncehook.uuid7_floor($3))
   AND ($4::uuid IS NULL OR e.id < $4)
   AND ($2::text IS NULL OR w.state = $2)
   AND ($2::text IS NULL OR $2 NOT IN ('processing', 'uncertain') OR e.id IN (SELECT event_id FROM oncehook.delivery))
 ORDER BY e.id DESC LIMIT $5
