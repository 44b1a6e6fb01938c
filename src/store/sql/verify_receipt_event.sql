-- verify_receipt_event: duplicates of events that are not there.
-- Run by store::verify.
-- $1 examples  $2 written since
-- Rows: findings. Index event_DAY_pkey, one probe per receipt, as in verify_attempt_event.
SELECT count(*) OVER () AS found, r.event_id, NULL::int AS source_id, NULL::text AS key, NULL::int AS handler_id, NULL::int AS run,
       format('of an event that is not stored, copies: %s', r.count) AS detail
  FROM oncehook.receipt r
  LEFT JOIN LATERAL (SELECT e.id FROM oncehook.event e WHERE e.id = r.event_id LIMIT 1) e ON true
 WHERE r.received_at >= $2 AND e.id IS NULL
 LIMIT (SELECT $1::bigint)
