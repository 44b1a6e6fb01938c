-- verify_conflict_digest: conflicts whose stored bytes are not those of their digest.
-- Run by store::verify when asked.
-- $1 examples  $2 seen since
-- Rows: findings.
SELECT count(*) OVER () AS found, c.event_id, c.source_id, c.key, NULL::int AS handler_id, NULL::int AS run,
       'the conflict''s bytes have another SHA-256 than it says'::text AS detail
  FROM oncehook.conflict c
 WHERE c.seen_at >= $2 AND sha256(c.body) <> c.raw_digest
 LIMIT (SELECT $1::bigint)
