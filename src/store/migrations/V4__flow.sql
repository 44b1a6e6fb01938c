-- Pauses, caps, priorities. Nodes of before look for due work without the new index columns: they
-- work on, more slowly, and run what is paused, until they are restarted. So no constraint keeps
-- `paused_source` to what is ready: one of theirs may be leased with it.

ALTER TABLE oncehook.source
  ADD COLUMN paused_at timestamptz,
  ADD COLUMN paused_by text,
  ADD COLUMN paused_reason text,
  ADD CONSTRAINT source_paused_check CHECK ((paused_at IS NULL) = (paused_by IS NULL));

ALTER TABLE oncehook.handler
  ADD COLUMN paused_at timestamptz,
  ADD COLUMN paused_by text,
  ADD COLUMN paused_reason text,
  ADD CONSTRAINT handler_paused_check CHECK ((paused_at IS NULL) = (paused_by IS NULL));

CREATE TABLE oncehook.handler_cap (
  handler_id  int PRIMARY KEY,
  tokens      float8 NOT NULL DEFAULT 0,
  refilled_at timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 50);
INSERT INTO oncehook.handler_cap (handler_id) SELECT id FROM oncehook.handler;

ALTER TABLE oncehook.delivery
  ADD COLUMN priority smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 2),
  ADD COLUMN paused_source int;

DROP INDEX oncehook.delivery_ready;
DROP INDEX oncehook.delivery_suspect;
DROP INDEX oncehook.delivery_lease;
CREATE INDEX delivery_ready   ON oncehook.delivery (handler_id, priority, run_at)
  WHERE state = 'ready' AND NOT suspect AND paused_source IS NULL;
CREATE INDEX delivery_suspect ON oncehook.delivery (handler_id, run_at)
  WHERE state = 'ready' AND suspect AND paused_source IS NULL;
CREATE INDEX delivery_lease   ON oncehook.delivery (handler_id, lease_until) WHERE state = 'leased';
CREATE INDEX delivery_aside   ON oncehook.delivery (paused_source) WHERE paused_source IS NOT NULL;
