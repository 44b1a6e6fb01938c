-- cap_lock: takes the right to claim for capped handlers, one node at a time.
-- Run by store::cap::claim, first in the claim's transaction.
-- $1 handler_ids
-- Rows: those that nobody else claims for at the moment, locked until the end of the transaction.
-- Index handler_cap_pkey.
SELECT handler_id FROM oncehook.handler_cap WHERE handler_id = ANY ($1::int[]) ORDER BY handler_id FOR UPDATE SKIP LOCKED
