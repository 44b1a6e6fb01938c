-- event_find: from a key, or from a provider's id, to the event.
-- Run by store::query::find.
-- $1 source name  $2 key or id  $3 the id as the first part of a key, followed by ':'  $4 the id as a whole key
-- Rows: the exact key first, then the id as a key, then keys that begin with the id; two of the latter
-- are ambiguous.
-- Index event_key_NN_pkey (range scan: the key is COLLATE "C").
SELECT k.event_id, k.key, k.key IN ($2, $4) AS exact, k.raw_digest, k.first_seen, s.id, s.first_name
  FROM oncehook.source s JOIN oncehook.event_key k ON k.source_id = s.id
 WHERE s.name = $1 AND (k.key IN ($2, $4) OR (k.key >= $3 AND k.key < substr($3, 1, length($3) - 1) || ';'))
 ORDER BY k.key = $2 DESC, exact DESC LIMIT 3
