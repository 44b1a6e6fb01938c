-- source_list: every source, its pause, and what is set aside for it.
-- Run by store::flow::sources, for people.
-- Rows: one per source. Index delivery_aside; counts end at 10,000 per source.
SELECT s.id, s.name, s.paused_at, s.paused_by, s.paused_reason,
       (SELECT count(*) FROM (SELECT FROM oncehook.delivery WHERE paused_source = s.id LIMIT 10000) x) AS aside
  FROM oncehook.source s ORDER BY s.name
