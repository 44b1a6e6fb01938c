-- effect_keep: which calls the effect keys of these leases name, written before any of them leaves.
-- Run by store::effects::keep, a transaction of its own (autocommit), for handlers whose calls are settled by events.
-- $1 effect keys  $2 event_ids  $3 handler_ids  $4 generations  $5 runs, NULL for a first try, which nothing can be said of
-- Rows: those whose effect is known to be there; they are not sent again.
-- Index effect_pkey, in the order of the keys, so that two nodes do not deadlock; attempt_DAY_event_id_idx.
WITH q AS (
  SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::int[], $4::smallint[], $5::smallint[]) AS u(effect_key, event_id, handler_id, generation, run)
), kept AS (
  INSERT INTO oncehook.effect (effect_key, event_id, handler_id, generation)
  SELECT effect_key, event_id, handler_id, generation FROM q ORDER BY effect_key
  ON CONFLICT DO NOTHING
)
SELECT q.event_id, q.handler_id FROM q
 WHERE q.run IS NOT NULL
   AND EXISTS (SELECT FROM oncehook.attempt a
                WHERE a.event_id = q.event_id AND a.handler_id = q.handler_id AND a.run = q.run
                  AND a.verdict = 'evidence' AND a.answer = 'succeeded')
