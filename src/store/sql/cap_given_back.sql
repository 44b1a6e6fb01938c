-- cap_given_back: what has become of a handler's tokens since a claim took some.
-- Run by store::cap::give_back, behind cap_wait: in a statement of its own, whose clock is read when the lock is held.
-- $1 handler_id  $2 the moment of the claim that took them
-- Rows: 1: seconds since then, and what was ever given back. A clock that was set back does not undo what has flowed
-- in. Index handler_cap_pkey.
SELECT extract(epoch FROM greatest(clock_timestamp(), refilled_at, $2::timestamptz) - $2::timestamptz)::float8 AS since, given_back
  FROM oncehook.handler_cap WHERE handler_id = $1
