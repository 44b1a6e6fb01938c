-- timeline_conflicts: other content under this key.
-- $1 source_id  $2 key
SELECT seen_at, first_digest, raw_digest FROM oncehook.conflict WHERE source_id = $1 AND key = $2 ORDER BY seen_at LIMIT 100
