-- source_resume: ends the pause of a source.
-- Run by store::flow::resume, with the audit row and the signal in the same transaction.
-- $1 name
-- Rows: 1 resumed; 0 it is not paused, or is not known.
UPDATE oncehook.source SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
 WHERE name = $1 AND paused_at IS NOT NULL
