-- source_pause: begins the pause of a source.
-- Run by store::flow::pause, with the audit row and the signal in the same transaction.
-- $1 name  $2 who  $3 why, or NULL
-- Rows: 1 paused; 0 it is paused already, or is not known.
UPDATE oncehook.source SET paused_at = now(), paused_by = $2, paused_reason = $3
 WHERE name = $1 AND paused_at IS NULL
