-- latest_lock: locks what was applied last to each object, whether anything was or not.
-- Run by store::latest::lock, in the settle transaction before handlers run: of two transactions
-- with events about one object the second waits, and then sees what the first has applied.
-- $1 handler_id  $2 entities  $3 where versions are read from
-- Rows: entity and version, NULL when nothing was applied by versions from there.
-- One statement in sorted order, inserts and locks alike: two orders would deadlock.
INSERT INTO oncehook.latest AS l (handler_id, entity, read_from)
SELECT DISTINCT $1::int, e, $3 FROM unnest($2::text[]) AS u(e) ORDER BY e
ON CONFLICT (handler_id, entity) DO UPDATE SET read_from = l.read_from
RETURNING entity, CASE WHEN read_from = $3 THEN version::text END
