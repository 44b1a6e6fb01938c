-- verify_route: handlers in an event's routes that have neither a delivery nor an outcome for it.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings.
SELECT count(*) OVER () AS found, e.id AS event_id, e.source_id, e.key, e.handler_id, NULL::int AS run,
       'neither a delivery nor an outcome'::text AS detail
  FROM (SELECT e.id, e.source_id, e.key, unnest(e.routes) AS handler_id
          FROM oncehook.event e WHERE e.id >= oncehook.uuid7_floor($2)) e
 WHERE NOT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id AND d.handler_id = e.handler_id)
   AND NOT EXISTS (SELECT FROM oncehook.outcome o
                    WHERE o.event_id >= oncehook.uuid7_floor($2) AND o.event_id = e.id AND o.handler_id = e.handler_id)
 LIMIT (SELECT $1::bigint)
