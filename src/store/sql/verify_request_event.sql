-- verify_request_event: requests of which no event is stored.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. A request and its events are of one transaction, so of one millisecond and day.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, r.source_id, NULL::text AS key, NULL::int AS handler_id, NULL::int AS run,
       'no event of request ' || r.id || ' is stored' AS detail
  FROM oncehook.request r
 WHERE r.id >= oncehook.uuid7_floor($2)
   AND NOT EXISTS (SELECT FROM oncehook.event e WHERE e.id >= oncehook.uuid7_floor($2) AND e.request_id = r.id)
 LIMIT (SELECT $1::bigint)
