-- cap_give_back: tokens come back under which nothing was begun.
-- Run by store::cap::give_back, behind cap_wait, which holds the row's lock.
-- $1 handler_id  $2 how many
-- Rows: 1.
UPDATE oncehook.handler_cap SET tokens = tokens + $2, given_back = given_back + $2 WHERE handler_id = $1
