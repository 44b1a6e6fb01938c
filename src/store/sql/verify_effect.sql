-- verify_effect: effect keys that name an event or a handler that is not there.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. The keys' own column is read in full, since they have no index by time. Index event_DAY_pkey,
-- one probe per key.
SELECT count(*) OVER () AS found, k.event_id, NULL::int AS source_id, NULL::text AS key, k.handler_id, NULL::int AS run,
       CASE WHEN e.id IS NULL THEN 'an effect key of an event that is not stored'
            ELSE format('an effect key of handler %s, which is not registered', k.handler_id) END AS detail
  FROM oncehook.effect k
  LEFT JOIN oncehook.handler h ON h.id = k.handler_id
  LEFT JOIN LATERAL (SELECT e.id FROM oncehook.event e WHERE e.id = k.event_id LIMIT 1) e ON true
 WHERE k.event_id >= oncehook.uuid7_floor($2) AND (e.id IS NULL OR h.id IS NULL)
 LIMIT (SELECT $1::bigint)
