-- cap_wait: locks a handler's tokens, some of which come back.
-- Run by store::cap::give_back, in the transaction that gives the leases back.
-- $1 handler_id
-- Rows: 1. Index handler_cap_pkey. Whoever claims passes a locked row by, and waits for no delivery while it has one.
SELECT handler_id FROM oncehook.handler_cap WHERE handler_id = $1 FOR UPDATE
