-- verify_attempt_event: tries of events or handlers that are not there; what events say that are not.
-- Run by store::verify.
-- $1 examples  $2 written since
-- Rows: findings. Index event_DAY_pkey, one probe per try: it may be of any earlier day. LIMIT
-- keeps the look-up from becoming a join with every event there is.
SELECT count(*) OVER () AS found, a.event_id, NULL::int AS source_id, NULL::text AS key, a.handler_id, a.run::int AS run,
       CASE WHEN e.id IS NULL THEN 'a try (' || a.verdict || ') of an event that is not stored'
            WHEN t.told_by IS NOT NULL THEN 'told by an event that is not stored'
            ELSE format('a try of handler %s, which is not registered', a.handler_id) END AS detail
  FROM oncehook.attempt a
  LEFT JOIN oncehook.handler h ON h.id = a.handler_id
  LEFT JOIN LATERAL (SELECT e.id FROM oncehook.event e WHERE e.id = a.event_id LIMIT 1) e ON true
  LEFT JOIN LATERAL (SELECT a.told_by WHERE NOT EXISTS (SELECT FROM oncehook.event e WHERE e.id = a.told_by)) t ON a.told_by IS NOT NULL
 WHERE a.ended_at >= $2 AND (e.id IS NULL OR h.id IS NULL OR t.told_by IS NOT NULL)
 LIMIT (SELECT $1::bigint)
