-- timeline_outcomes: finished runs of one event.
-- $1 event_id
SELECT h.id AS handler_id, h.name, h.first_name, h.retired_at IS NOT NULL AS retired, h.on_unknown, o.run, o.generation, o.result, o.decided_by, o.reason, o.resource, o.external_id, o.attempts, o.finished_at
  FROM oncehook.outcome o JOIN oncehook.handler h ON h.id = o.handler_id WHERE o.event_id = $1 ORDER BY o.finished_at, h.name
