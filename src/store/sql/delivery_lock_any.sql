-- delivery_lock_any: locks one delivery whatever its state, to find out how a COMMIT ended whose
-- reply was lost.
-- Run by store::delivery::read_back. Waits for the old transaction to end.
-- $1 event_id  $2 handler_id
-- Rows: 0 it is finished; 1 it lives, with its token if it is leased.
SELECT lease_token FROM oncehook.delivery WHERE event_id = $1 AND handler_id = $2 FOR UPDATE
