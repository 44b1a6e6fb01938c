-- event_list: a page of events, newest first, with their states.
-- Run by store::query::events.
-- $1 source name  $2 type as a LIKE pattern  $3 state  $4 before this id  $5 page size
-- Index event_DAY_pkey, backwards. A state is derived from the last run of each handler, in the
-- order uncertain, held, pending, dead, failed, succeeded. What is uncertain is found by its own index:
-- a person's task may be old.
SELECT * FROM (
  SELECT e.id, s.name, e.key, e.type, e.entity, e.occurred_at,
         CASE WHEN w.uncertain THEN 'uncertain'
              WHEN w.held THEN 'held'
              WHEN w.pending THEN 'pending'
              WHEN w.dead THEN 'dead'
              WHEN w.failed THEN 'failed'
              WHEN w.finished THEN 'succeeded'
              ELSE coalesce(e.state, 'unrecognized') END AS state
    FROM oncehook.event e JOIN oncehook.source s ON s.id = e.source_id
   CROSS JOIN LATERAL (
     SELECT EXISTS (SELECT FROM oncehook.delivery WHERE event_id = e.id AND state = 'uncertain') AS uncertain,
            EXISTS (SELECT FROM oncehook.delivery WHERE event_id = e.id AND state = 'held') AS held,
            EXISTS (SELECT FROM oncehook.delivery WHERE event_id = e.id) AS pending,
            coalesce(bool_or(last.result = 'dead'), false) AS dead,
            coalesce(bool_or(last.result = 'failed'), false) AS failed,
            count(*) > 0 AS finished
       FROM (SELECT DISTINCT ON (handler_id) result FROM oncehook.outcome WHERE event_id = e.id ORDER BY handler_id, run DESC) last
   ) w
   WHERE ($1::text IS NULL OR s.name = $1) AND ($2::text IS NULL OR e.type LIKE $2) AND ($4::uuid IS NULL OR e.id < $4)
     AND ($3::text IS DISTINCT FROM 'uncertain' OR e.id IN (SELECT event_id FROM oncehook.delivery WHERE state = 'uncertain'))
) listed
WHERE $3::text IS NULL OR state = $3
ORDER BY id DESC LIMIT $5
