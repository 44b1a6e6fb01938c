-- Lanes: one delivery at a time for one business object. See schema.sql for what the columns mean.

ALTER TABLE oncehook.handler ADD COLUMN lane_by text COLLATE "C";

CREATE SEQUENCE oncehook.lane_seq;

ALTER TABLE oncehook.delivery
  ADD COLUMN lane text COLLATE "C" CHECK (octet_length(lane) BETWEEN 1 AND 200),
  ADD COLUMN lane_seq bigint,
  ADD COLUMN state_reason text,
  DROP CONSTRAINT delivery_state_check,
  ADD CONSTRAINT delivery_state_check CHECK (state IN ('blocked', 'ready', 'leased', 'held')),
  ADD CHECK ((lane IS NULL) = (lane_seq IS NULL)),
  ADD CHECK (state <> 'blocked' OR lane IS NOT NULL);
CREATE UNIQUE INDEX delivery_one_head ON oncehook.delivery (handler_id, lane) WHERE lane IS NOT NULL AND state <> 'blocked';
CREATE INDEX delivery_held ON oncehook.delivery (handler_id) WHERE state = 'held';
CREATE INDEX delivery_blocked ON oncehook.delivery (handler_id, lane, lane_seq) WHERE state = 'blocked';
