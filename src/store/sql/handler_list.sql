-- handler_list: every handler, its pause, and its open work.
-- Run by store::flow::handlers, for people.
-- Rows: one per handler that is not retired. Indexes delivery_ready, delivery_lease, delivery_uncertain, delivery_held;
-- counts end at 10,000 per handler, what is due at 10,000 per handler and priority. What is set aside for a paused source is counted there.
SELECT h.id, h.name, h.paused_at, h.paused_by, h.paused_reason,
       (SELECT coalesce(sum(n), 0)::bigint
          FROM generate_series(0, 2) AS p(priority)
         CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
           SELECT FROM oncehook.delivery WHERE state = 'ready' AND NOT suspect AND paused_source IS NULL
              AND handler_id = h.id AND priority = p.priority::smallint AND run_at <= now() LIMIT 10000) x) c) AS due,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE state = 'leased' AND handler_id = h.id LIMIT 10000) x) AS leased,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE state = 'uncertain' AND handler_id = h.id LIMIT 10000) x) AS uncertain,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE state = 'held' AND handler_id = h.id LIMIT 10000) x) AS held
  FROM oncehook.handler h WHERE h.retired_at IS NULL ORDER BY h.name
