-- verify_digest: events whose stored bytes are no longer those that their key's digest was made of.
-- Run by store::verify when asked: every body is read and hashed.
-- $1 examples  $2 received since
-- Rows: findings. Index request_DAY_pkey, event_key_NN_pkey, one probe each per event. What is left of an operation whose key was
-- renewed has no digest.
SELECT count(*) OVER () AS found, e.id AS event_id, e.source_id, e.key, NULL::int AS handler_id, NULL::int AS run,
       'its bytes have another SHA-256 than its key'::text AS detail
  FROM oncehook.event e
 CROSS JOIN LATERAL (SELECT sha256(substr(r.body, e.item_offset + 1, e.item_length)) AS raw_digest
                       FROM oncehook.request r WHERE r.id = e.request_id LIMIT 1) r
 CROSS JOIN LATERAL (SELECT k.raw_digest FROM oncehook.event_key k WHERE k.source_id = e.source_id AND k.key = e.key AND k.event_id = e.id LIMIT 1) k
 WHERE e.id >= oncehook.uuid7_floor($2) AND e.item_offset >= 0 AND e.item_length >= 0 AND r.raw_digest <> k.raw_digest
 LIMIT (SELECT $1::bigint)
