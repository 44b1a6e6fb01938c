-- effect_find: whose calls effect keys name.
-- Run by store::effects::find, in the transaction of the events that name them.
-- $1 effect keys
-- Rows: those that are known. Index effect_pkey.
SELECT k.effect_key, k.event_id, k.handler_id, k.generation, e.key, s.name AS source
  FROM unnest($1::bytea[]) AS q(effect_key)
 CROSS JOIN LATERAL (SELECT effect_key, event_id, handler_id, generation FROM oncehook.effect
                      WHERE effect_key = q.effect_key LIMIT 1) k
  LEFT JOIN LATERAL (SELECT key, source_id FROM oncehook.event WHERE id = k.event_id LIMIT 1) e ON true
  LEFT JOIN oncehook.source s ON s.id = e.source_id
