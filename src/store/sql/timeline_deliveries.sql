-- timeline_deliveries: unfinished work of one event, and of what is blocked, behind whom it waits.
-- $1 event_id  $2 source_id
SELECT h.name, h.first_name, d.run, d.generation, d.state, d.failures, d.suspect, d.run_at, d.lease_until, d.lane, d.state_reason, d.priority,
       d.uncertain_at, d.in_flight_until, d.probes,
       h.paused_at AS handler_paused_at, h.paused_by AS handler_paused_by, h.paused_reason AS handler_paused_reason,
       s.paused_at AS source_paused_at, s.paused_by AS source_paused_by, s.paused_reason AS source_paused_reason,
       b.source AS behind_source, b.key AS behind_key, b.state AS behind_state,
       b.paused_at AS behind_paused_at, b.paused_by AS behind_paused_by, b.paused_reason AS behind_paused_reason
  FROM oncehook.delivery d JOIN oncehook.handler h ON h.id = d.handler_id LEFT JOIN oncehook.source s ON s.id = $2
  LEFT JOIN LATERAL (SELECT first.state, e.key, hs.name AS source, hs.paused_at, hs.paused_by, hs.paused_reason
                       FROM oncehook.delivery first JOIN oncehook.event e ON e.id = first.event_id JOIN oncehook.source hs ON hs.id = e.source_id
                      WHERE d.state = 'blocked' AND first.handler_id = d.handler_id AND first.lane = d.lane
                        AND first.lane IS NOT NULL AND first.state <> 'blocked'
                      LIMIT 1) b ON true
 WHERE d.event_id = $1 ORDER BY h.name
