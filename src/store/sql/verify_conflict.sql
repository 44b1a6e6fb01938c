-- verify_conflict: conflicts that do not point to a stored key with another digest.
-- Run by store::verify.
-- $1 examples  $2 seen since
-- Rows: findings. Index event_key_NN_pkey, one probe per conflict.
-- A conflict of an earlier intent of an operation's key stays when the key is renewed (generation above 0).
SELECT count(*) OVER () AS found, c.event_id, c.source_id, c.key, NULL::int AS handler_id, NULL::int AS run,
       CASE WHEN k.event_id IS NULL THEN 'a conflict under a key that is not stored'
            WHEN NOT k.renewed AND k.event_id <> c.event_id THEN 'the conflict names another event than its key'
            WHEN NOT k.renewed AND k.raw_digest <> c.first_digest THEN 'the conflict''s first digest is not that of its key'
            ELSE 'the conflict has the content of its key' END AS detail
  FROM oncehook.conflict c
  LEFT JOIN LATERAL (SELECT k.event_id, k.raw_digest, k.generation > 0 AND k.event_id > c.event_id AS renewed FROM oncehook.event_key k
                      WHERE k.source_id = c.source_id AND k.key = c.key LIMIT 1) k ON true
 WHERE c.seen_at >= $2
   AND (k.event_id IS NULL OR NOT k.renewed AND (k.event_id <> c.event_id OR k.raw_digest <> c.first_digest) OR c.raw_digest = c.first_digest)
 LIMIT (SELECT $1::bigint)
