-- latest_apply: keeps what was applied, in the transaction that holds the effect.
-- Run by store::latest::apply.
-- $1 handler_id  $2 entities  $3 versions  $4 event_ids  $5 where versions are read from
-- Rows: one per entity. A version never goes back; one that was read from elsewhere is replaced.
INSERT INTO oncehook.latest AS l (handler_id, entity, read_from, version, event_id)
SELECT $1::int, e, $5, v::numeric, id FROM unnest($2::text[], $3::text[], $4::uuid[]) AS u(e, v, id) ORDER BY e
ON CONFLICT (handler_id, entity) DO UPDATE
   SET read_from = EXCLUDED.read_from,
       event_id = CASE WHEN l.read_from = EXCLUDED.read_from AND l.version > EXCLUDED.version THEN l.event_id ELSE EXCLUDED.event_id END,
       version = CASE WHEN l.read_from = EXCLUDED.read_from AND l.version > EXCLUDED.version THEN l.version ELSE EXCLUDED.version END
