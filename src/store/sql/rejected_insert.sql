-- rejected_insert: sampled refused requests.
-- Run by store::rejected::record, off the request's path.
-- $1 source_ids  $2 reasons  $3 digests  $4 sizes  $5 peers
INSERT INTO oncehook.rejected (received_at, source_id, reason, digest, size, peer)
SELECT now(), u.source_id, u.reason, u.digest, u.size, u.peer::inet
  FROM unnest($1::int[], $2::text[], $3::bytea[], $4::bigint[], $5::text[]) AS u(source_id, reason, digest, size, peer)
