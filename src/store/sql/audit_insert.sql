-- audit_insert: who did what, why.
-- Run in the transaction of the action itself.
-- $1 actor  $2 action  $3 subject  $4 reason  $5 before  $6 after
INSERT INTO oncehook.audit (actor, action, subject, reason, before, after) VALUES ($1, $2, $3, $4, $5, $6)
