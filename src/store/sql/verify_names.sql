-- verify_names: source and key of the events that findings name.
-- Run by store::verify, last.
-- $1 event_ids
-- Index event_DAY_pkey.
SELECT e.id, e.source_id, e.key
  FROM unnest($1::uuid[]) AS q(event_id)
 CROSS JOIN LATERAL (SELECT id, source_id, key FROM oncehook.event WHERE id = q.event_id LIMIT 1) e
