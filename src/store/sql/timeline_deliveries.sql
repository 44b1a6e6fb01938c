-- timeline_deliveries: unfinished work of one event.
-- $1 event_id
SELECT h.name, h.first_name, d.run, d.generation, d.state, d.failures, d.suspect, d.run_at, d.lease_until, d.uncertain_at, d.in_flight_until, d.probes
  FROM oncehook.delivery d JOIN oncehook.handler h ON h.id = d.handler_id WHERE d.event_id = $1 ORDER BY h.name
