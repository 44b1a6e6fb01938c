-- handler_resume: ends the pause of a handler.
-- Run by store::flow::resume, with the audit row and the signal in the same transaction.
-- $1 name
-- Rows: 1 resumed; 0 it is not paused, or is not known.
UPDATE oncehook.handler SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
 WHERE name = $1 AND paused_at IS NOT NULL
