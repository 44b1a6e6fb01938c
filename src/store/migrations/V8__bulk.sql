-- Bulk replays. See schema.sql for what the columns mean.

CREATE TABLE oncehook.bulk_replay (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source_id     int,
  handler_id    int,
  type          text COLLATE "C",
  results       text[] COLLATE "C" NOT NULL,
  since         timestamptz NOT NULL,
  until         timestamptz NOT NULL,
  force         bool NOT NULL,
  verify_bytes  bool NOT NULL,
  rate          int NOT NULL CHECK (rate > 0),
  reason        text NOT NULL,
  actor         text NOT NULL,
  started_at    timestamptz NOT NULL,
  after_event   uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
  after_handler int NOT NULL DEFAULT 0,
  replayed      bigint NOT NULL DEFAULT 0,
  refused       bigint NOT NULL DEFAULT 0,
  refusals      jsonb NOT NULL DEFAULT '[]',
  next_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  state         text COLLATE "C" NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'stopped', 'complete', 'given_up')),
  ended_at      timestamptz,
  CHECK ((state IN ('complete', 'given_up')) = (ended_at IS NOT NULL))
);
CREATE INDEX bulk_replay_due ON oncehook.bulk_replay (next_at) WHERE state = 'running';
CREATE INDEX audit_bulk ON oncehook.audit ((after ->> 'bulk')) WHERE after ->> 'bulk' IS NOT NULL;
