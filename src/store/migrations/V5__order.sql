-- Events that come before their object, and events that are older than what was applied.
-- See schema.sql for what the columns mean.

ALTER TABLE oncehook.delivery
  ADD COLUMN not_yet smallint NOT NULL DEFAULT 0,
  ADD COLUMN not_yet_since timestamptz;

ALTER TABLE oncehook.attempt
  DROP CONSTRAINT attempt_verdict_check,
  ADD CONSTRAINT attempt_verdict_check CHECK (verdict IN ('retry', 'not_yet', 'permanent', 'unknown', 'lost', 'evidence', 'probe'));

CREATE TABLE oncehook.latest (
  handler_id int NOT NULL,
  entity     text COLLATE "C" NOT NULL,
  read_from  text COLLATE "C" NOT NULL,
  version    numeric,
  event_id   uuid,
  PRIMARY KEY (handler_id, entity),
  CHECK ((version IS NULL) = (event_id IS NULL))
) WITH (fillfactor = 70);
