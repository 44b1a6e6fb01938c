-- effect_free: gives the place back that effect_reserve took in this transaction.
-- Run by store::effects::free.
-- $1 event_id  $2 handler_id
-- Rows: 1. Index delivery_pkey.
DELETE FROM oncehook.delivery WHERE event_id = $1 AND handler_id = $2 AND state = 'ready' AND run_at = 'infinity'
