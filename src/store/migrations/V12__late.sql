-- Events that say later how a call ended. See schema.sql for what the columns mean.
-- A node of the version before keeps no effect keys and reads none. It ends a delivery by an event's word all the
-- same, in the handler's name.

CREATE TABLE oncehook.effect (
  effect_key bytea PRIMARY KEY CHECK (octet_length(effect_key) = 20),
  event_id   uuid NOT NULL,
  handler_id int NOT NULL,
  generation smallint NOT NULL
);

ALTER TABLE oncehook.outcome
  DROP CONSTRAINT outcome_decided_by_check,
  ADD CONSTRAINT outcome_decided_by_check CHECK (decided_by IN ('handler', 'probe', 'operator', 'webhook'));

ALTER TABLE oncehook.attempt ADD COLUMN told_by uuid;
