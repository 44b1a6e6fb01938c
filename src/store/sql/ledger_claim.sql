-- ledger_claim: begins an effect in the database of a handler that has its own, or finds it applied.
-- Run by store::ledger::begin, there, as the first statement of the transaction in which the function runs.
-- $1 effect_key  $2 handler  $3 run
-- Rows: 1. `begun`: the function is to be run; else `answer` is what it answered.
-- Index applied_pkey, which decides: who comes while another's transaction is open waits for its end. What is
-- known is written to all the same, so that the COMMIT of who takes the answer waits for the standbys that the
-- first one's may not have reached. The setting tells the table's triggers until the end of the transaction whose row may
-- be touched. A final "no" is that of its run: a later one, ordered by a person, asks again.
INSERT INTO oncehook.applied AS known (effect_key, handler, run) VALUES (set_config('oncehook.effect_key', $1, true), $2, $3)
ON CONFLICT (effect_key) DO UPDATE
   SET repeats = CASE WHEN excluded.run > known.run AND known.answer ->> 'result' IN ('failed', 'skip')
                      THEN 0 ELSE known.repeats + 1 END,
       run = greatest(known.run, excluded.run)
RETURNING repeats = 0 AS begun, answer
