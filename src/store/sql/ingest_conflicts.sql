-- ingest_conflicts: other content under a known key, once per digest.
-- Run by store::ingest::record_known, in the ingest transaction.
-- $1 source_ids  $2 keys  $3 raw digests  $4 event_ids  $5 first digests  $6 bodies  $7 secret labels
-- Rows: conflicts not seen before.
INSERT INTO oncehook.conflict (source_id, key, raw_digest, event_id, first_digest, seen_at, body, secret_label)
SELECT u.source_id, u.key, u.raw_digest, u.event_id, u.first_digest, now(), u.body, u.secret_label
  FROM unnest($1::int[], $2::text[], $3::bytea[], $4::uuid[], $5::bytea[], $6::bytea[], $7::text[])
       AS u(source_id, key, raw_digest, event_id, first_digest, body, secret_label)
 ORDER BY u.source_id, u.key COLLATE "C", u.raw_digest
ON CONFLICT DO NOTHING
