-- ledger_answer: keeps what the function answered, beside its effect.
-- Run by store::ledger::keep, in the transaction of ledger_claim.
-- $1 effect_key  $2 answer, NULL for done
-- Rows: 1; 0 when the row is not this transaction's own: the function has ended that, or changed the ledger; or when
-- it changed the setting by which the table's triggers know whose row may be touched.
UPDATE oncehook.applied SET answer = $2, applied_at = now()
 WHERE effect_key = $1 AND xmin = pg_current_xact_id()::xid
   AND effect_key = current_setting('oncehook.effect_key', true)
