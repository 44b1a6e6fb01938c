-- ingest_known: reads the keys that were known already.
-- Run by store::ingest::known, a statement of its own: under READ COMMITTED the row that won can
-- be invisible to the statement that lost.
-- $1 source_ids  $2 keys
-- Rows: position (from 1) and what is stored. A missing position was rolled back or removed
-- meanwhile: the caller reserves once more.
-- `expired`: of an operation, whether it may name another intent; NULL: never.
-- Index event_key_NN_pkey. LIMIT keeps the look-up below the join: without it the planner may hash
-- every key there is.
SELECT q.no::int, k.event_id, k.raw_digest, k.canonical_digest, k.digest_rule, k.expired
  FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS q(source_id, key, no)
 CROSS JOIN LATERAL (SELECT event_id, raw_digest, canonical_digest, digest_rule, expires_at <= clock_timestamp() AS expired
                       FROM oncehook.event_key
                      WHERE source_id = q.source_id AND key = q.key LIMIT 1) k
