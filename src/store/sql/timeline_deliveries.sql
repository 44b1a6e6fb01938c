-- timeline_deliveries: unfinished work of one event.
-- $1 event_id  $2 source_id
SELECT h.name, h.first_name, d.run, d.generation, d.state, d.failures, d.suspect, d.run_at, d.lease_until, d.lane, d.state_reason, d.priority,
       h.paused_at AS handler_paused_at, h.paused_by AS handler_paused_by, h.paused_reason AS handler_paused_reason,
       s.paused_at AS source_paused_at, s.paused_by AS source_paused_by, s.paused_reason AS source_paused_reason
  FROM oncehook.delivery d JOIN oncehook.handler h ON h.id = d.handler_id LEFT JOIN oncehook.source s ON s.id = $2
 WHERE d.event_id = $1 ORDER BY h.name
