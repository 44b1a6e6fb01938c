-- verify_event_key: events without their key, or whose key names another event.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Index event_key_NN_pkey, one probe per event. LIMIT keeps the look-up below the
-- join: else the planner may hash every key there is.
-- An operation's key that was renewed (generation above 0) names the later event.
SELECT count(*) OVER () AS found, e.id AS event_id, e.source_id, e.key, NULL::int AS handler_id, NULL::int AS run,
       CASE WHEN k.event_id IS NULL THEN 'its key is not stored' ELSE 'its key names event ' || k.event_id END AS detail
  FROM oncehook.event e
  LEFT JOIN LATERAL (SELECT event_id, generation FROM oncehook.event_key WHERE source_id = e.source_id AND key = e.key LIMIT 1) k ON true
 WHERE e.id >= oncehook.uuid7_floor($2) AND k.event_id IS DISTINCT FROM e.id
   AND (k.generation > 0 AND k.event_id > e.id) IS NOT TRUE
 LIMIT (SELECT $1::bigint)
