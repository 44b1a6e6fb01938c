-- verify_key_event: keys whose event is not there, or bears another key.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. `event_key` has no index by time, so its 16 partitions are read in full; events of
-- the days since then only.
SELECT count(*) OVER () AS found, k.event_id, k.source_id, k.key, NULL::int AS handler_id, NULL::int AS run,
       CASE WHEN e.id IS NULL THEN 'the key is stored, its event is not' ELSE 'the event bears another key' END AS detail
  FROM oncehook.event_key k
  LEFT JOIN oncehook.event e ON e.id = k.event_id AND e.id >= oncehook.uuid7_floor($2)
 WHERE k.event_id >= oncehook.uuid7_floor($2)
   AND (e.id IS NULL OR e.source_id <> k.source_id OR e.key <> k.key)
 LIMIT (SELECT $1::bigint)
