-- operation_list: ids of a page of operations, newest first.
-- Run by store::operation, which reads them with operation_read in the same snapshot.
-- $1 operation  $2 state  $3 created so many seconds ago or longer  $4 before this id  $5 page size
-- The state is that of operation_read: what has ended for good is completed, whatever a person has begun since.
-- Index event_DAY_pkey, backwards, and outcome_DAY_pkey, attempt_DAY_event_id_idx, delivery_pkey for each; what is not finished is found in `delivery`, however old it is.
SELECT e.id
  FROM oncehook.event e
  JOIN oncehook.handler h ON h.operation_of = e.source_id
  JOIN oncehook.source s ON s.id = e.source_id
 CROSS JOIN LATERAL (
   SELECT CASE WHEN EXISTS (SELECT FROM oncehook.outcome o
                             WHERE o.event_id = e.id AND o.handler_id = h.id
                               AND (o.result IN ('succeeded', 'failed', 'skipped')
                                    OR EXISTS (SELECT FROM oncehook.attempt l
                                                WHERE l.event_id = o.event_id AND l.handler_id = o.handler_id AND l.run = o.run
                                                  AND l.verdict = 'evidence' AND l.answer = 'succeeded'))) THEN 'completed'
               ELSE coalesce((SELECT CASE WHEN state = 'uncertain' THEN 'uncertain' ELSE 'processing' END
                                FROM oncehook.delivery WHERE event_id = e.id AND handler_id = h.id), 'failed') END AS state) w
 WHERE ($1::text IS NULL OR s.name = $1)
   AND ($3::float8 IS NULL OR e.id < oncehook.uuid7_floor(clock_timestamp() - make_interval(secs => $3::float8)))
   AND ($4::uuid IS NULL OR e.id < $4)
   AND ($2::text IS NULL OR w.state = $2)
   AND ($2::text IS NULL OR $2 NOT IN ('processing', 'uncertain') OR e.id IN (SELECT event_id FROM oncehook.delivery))
 ORDER BY e.id DESC LIMIT $5
