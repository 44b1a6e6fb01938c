-- cap_given_back: locks a handler's tokens, some of which come back.
-- Run by store::cap::give_back, in the transaction that gives the leases back.
-- $1 handler_id  $2 the moment of the claim that took them
-- Rows: 1: seconds since then, and what was ever given back. A clock that was set back does not undo what has flowed
-- in. Index handler_cap_pkey. Whoever claims passes a locked row by, and waits for no delivery while it has one.
SELECT extract(epoch FROM greatest(clock_timestamp(), refilled_at, $2::timestamptz) - $2::timestamptz)::float8 AS since, given_back
  FROM oncehook.handler_cap WHERE handler_id = $1 FOR UPDATE
