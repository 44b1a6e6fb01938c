-- delivery_lock_any: locks one delivery whatever its state.
-- Run by store::uncertain::look: to find out how a COMMIT ended whose reply was lost (it waits for the
-- old transaction), and before whatever is decided about an uncertain one.
-- $1 event_id  $2 handler_id
-- Rows: 0 it is finished; 1 it lives, with its token if it is leased.
SELECT lease_token, state, run, generation, run_at, lease_until, in_flight_until, uncertain_at, call_token, probes, probe_token, lane
  FROM oncehook.delivery WHERE event_id = $1 AND handler_id = $2 FOR UPDATE
