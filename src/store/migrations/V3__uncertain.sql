-- Calls whose result is not known: kept apart, probed, and ended by evidence or by a person.
-- A node of the version before goes on with it: it makes and touches no uncertain delivery.

ALTER TABLE oncehook.delivery
  ADD COLUMN in_flight_until timestamptz,
  ADD COLUMN uncertain_at timestamptz,
  ADD COLUMN call_token uuid,
  ADD COLUMN probes smallint NOT NULL DEFAULT 0,
  ADD COLUMN probe_token uuid,
  ADD COLUMN probing_from timestamptz,
  DROP CONSTRAINT delivery_state_check,
  ADD CONSTRAINT delivery_state_check CHECK (state IN ('blocked', 'ready', 'leased', 'uncertain', 'held')),
  ADD CONSTRAINT delivery_uncertain_at CHECK ((state = 'uncertain') = (uncertain_at IS NOT NULL)),
  ADD CONSTRAINT delivery_uncertain_call CHECK ((state = 'uncertain') = (call_token IS NOT NULL)),
  ADD CONSTRAINT delivery_uncertain_flight CHECK (state <> 'uncertain' OR in_flight_until IS NOT NULL),
  ADD CONSTRAINT delivery_uncertain_probe CHECK (state = 'uncertain' OR (probes = 0 AND probe_token IS NULL AND probing_from IS NULL));
CREATE INDEX delivery_uncertain ON oncehook.delivery (handler_id, run_at) WHERE state = 'uncertain';

ALTER TABLE oncehook.handler ADD COLUMN on_unknown text COLLATE "C";

ALTER TABLE oncehook.outcome
  DROP CONSTRAINT outcome_decided_by_check,
  ADD CONSTRAINT outcome_decided_by_check CHECK (decided_by IN ('handler', 'probe', 'operator'));

ALTER TABLE oncehook.attempt
  ADD COLUMN in_flight_until timestamptz,
  ADD COLUMN answer text COLLATE "C" CHECK (answer IN ('succeeded', 'failed', 'skipped', 'dead')),
  ADD COLUMN resource text,
  DROP CONSTRAINT attempt_verdict_check,
  ADD CONSTRAINT attempt_verdict_check CHECK (verdict IN ('retry', 'permanent', 'unknown', 'lost', 'evidence', 'probe'));
