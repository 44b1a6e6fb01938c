-- The main job: verified webhooks, stored once, handled exactly once.
-- `schema.sql` at the top of the repository is the commented form of the whole schema.

CREATE FUNCTION oncehook.uuid7(at timestamptz) RETURNS uuid
  LANGUAGE sql VOLATILE PARALLEL SAFE
  RETURN overlay(gen_random_uuid()::text PLACING
    overlay(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') PLACING '-' FROM 9 FOR 0) || '-7'
    FROM 1 FOR 15)::uuid;

CREATE FUNCTION oncehook.uuid7_floor(at timestamptz) RETURNS uuid
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

CREATE TABLE oncehook.source (
  id         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text COLLATE "C" NOT NULL UNIQUE,
  first_name text COLLATE "C" NOT NULL UNIQUE,
  former_names text[] COLLATE "C" NOT NULL DEFAULT '{}',
  recipe     text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE oncehook.handler (
  id         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text COLLATE "C" NOT NULL UNIQUE,
  first_name text COLLATE "C" NOT NULL UNIQUE,
  former_names text[] COLLATE "C" NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(),
  retired_at timestamptz
);

CREATE TABLE oncehook.event_key (
  source_id        int NOT NULL,
  key              text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 2048),
  event_id         uuid NOT NULL,
  raw_digest       bytea NOT NULL CHECK (octet_length(raw_digest) = 32),
  canonical_digest bytea CHECK (octet_length(canonical_digest) = 32),
  digest_rule      smallint NOT NULL,
  first_seen       timestamptz NOT NULL,
  PRIMARY KEY (source_id, key)
) PARTITION BY HASH (source_id, key);

DO $$
BEGIN
  FOR n IN 0..15 LOOP
    EXECUTE format('CREATE TABLE oncehook.event_key_%s PARTITION OF oncehook.event_key FOR VALUES WITH (MODULUS 16, REMAINDER %s)',
                   lpad(n::text, 2, '0'), n);
  END LOOP;
END $$;

CREATE TABLE oncehook.request (
  id             uuid PRIMARY KEY,
  received_at    timestamptz NOT NULL,
  source_id      int NOT NULL,
  body           bytea NOT NULL,
  headers        bytea NOT NULL,
  method         text COLLATE "C" NOT NULL,
  path           text COLLATE "C" NOT NULL,
  query          text COLLATE "C",
  peer           inet,
  secret_label   text COLLATE "C" NOT NULL
) PARTITION BY RANGE (id);

-- lz4 takes a third of pglz's time; a server built without it keeps its default.
DO $$
BEGIN
  ALTER TABLE oncehook.request ALTER body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
  RAISE NOTICE 'this PostgreSQL was built without lz4: bodies use its default compression';
END $$;

CREATE TABLE oncehook.event (
  id           uuid PRIMARY KEY,
  request_id   uuid NOT NULL,
  item_offset  int NOT NULL,
  item_length  int NOT NULL,
  source_id    int NOT NULL,
  key          text COLLATE "C" NOT NULL,
  provider_id  text COLLATE "C",
  type         text COLLATE "C",
  entity       text COLLATE "C",
  account      text COLLATE "C",
  mode         text COLLATE "C",
  occurred_at  timestamptz,
  correlation_id uuid NOT NULL,
  state        text COLLATE "C" CHECK (state IN ('unreadable', 'ignored', 'unrecognized')),
  state_reason text COLLATE "C",
  routes       int[] NOT NULL
) PARTITION BY RANGE (id);

CREATE TABLE oncehook.receipt (
  event_id     uuid NOT NULL,
  received_at  timestamptz NOT NULL,
  count        int NOT NULL CHECK (count > 0),
  secret_label text COLLATE "C" NOT NULL
) PARTITION BY RANGE (received_at);
CREATE INDEX receipt_event ON oncehook.receipt (event_id);

CREATE TABLE oncehook.delivery (
  event_id     uuid NOT NULL,
  handler_id   int NOT NULL,
  run          smallint NOT NULL DEFAULT 1 CHECK (run > 0),
  generation   smallint NOT NULL DEFAULT 0,
  state        text COLLATE "C" NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'leased')),
  failures     smallint NOT NULL DEFAULT 0,
  suspect      bool NOT NULL DEFAULT false,
  losses_alone smallint NOT NULL DEFAULT 0,
  losses       smallint NOT NULL DEFAULT 0,
  first_try_at timestamptz,
  run_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  leased_at    timestamptz,
  lease_token  uuid,
  lease_until  timestamptz,
  PRIMARY KEY (event_id, handler_id),
  CHECK ((state = 'leased') = (lease_token IS NOT NULL)),
  CHECK ((state = 'leased') = (lease_until IS NOT NULL)),
  CHECK ((state = 'leased') = (leased_at IS NOT NULL))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 1);
CREATE INDEX delivery_ready   ON oncehook.delivery (handler_id, run_at) WHERE state = 'ready' AND NOT suspect;
CREATE INDEX delivery_suspect ON oncehook.delivery (handler_id, run_at) WHERE state = 'ready' AND suspect;
CREATE INDEX delivery_lease   ON oncehook.delivery (lease_until) WHERE state = 'leased';

CREATE TABLE oncehook.outcome (
  event_id    uuid NOT NULL,
  handler_id  int NOT NULL,
  run         smallint NOT NULL,
  generation  smallint NOT NULL,
  result      text COLLATE "C" NOT NULL CHECK (result IN ('succeeded', 'failed', 'skipped', 'dead', 'cancelled')),
  decided_by  text COLLATE "C" NOT NULL CHECK (decided_by IN ('handler', 'operator')),
  reason      text,
  resource    text,
  attempts    int NOT NULL,
  finished_at timestamptz NOT NULL,
  lease_token uuid,
  PRIMARY KEY (event_id, handler_id, run)
) PARTITION BY RANGE (event_id);

CREATE TABLE oncehook.attempt (
  event_id    uuid NOT NULL,
  handler_id  int NOT NULL,
  run         smallint NOT NULL,
  lease_token uuid,
  started_at  timestamptz,
  ended_at    timestamptz NOT NULL,
  verdict     text COLLATE "C" NOT NULL CHECK (verdict IN ('retry', 'permanent', 'lost', 'evidence')),
  error       text
) PARTITION BY RANGE (ended_at);
CREATE INDEX attempt_event ON oncehook.attempt (event_id);

CREATE TABLE oncehook.conflict (
  source_id    int NOT NULL,
  key          text COLLATE "C" NOT NULL,
  raw_digest   bytea NOT NULL CHECK (octet_length(raw_digest) = 32),
  event_id     uuid NOT NULL,
  first_digest bytea NOT NULL CHECK (octet_length(first_digest) = 32),
  seen_at      timestamptz NOT NULL,
  body         bytea NOT NULL,
  secret_label text COLLATE "C" NOT NULL,
  PRIMARY KEY (source_id, key, raw_digest)
);

CREATE TABLE oncehook.rejected (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  received_at timestamptz NOT NULL,
  source_id   int,
  reason      text COLLATE "C" NOT NULL,
  digest      bytea,
  size        bigint NOT NULL,
  peer        inet
);

CREATE TABLE oncehook.audit (
  id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at      timestamptz NOT NULL DEFAULT now(),
  actor   text NOT NULL,
  action  text COLLATE "C" NOT NULL,
  subject text COLLATE "C" NOT NULL,
  reason  text,
  before  jsonb,
  after   jsonb
);
CREATE INDEX audit_subject ON oncehook.audit (subject);

CREATE FUNCTION oncehook.audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'oncehook.audit is append-only';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON oncehook.audit
  FOR EACH STATEMENT EXECUTE FUNCTION oncehook.audit_is_append_only();

-- Makes the day partitions from yesterday to `days_ahead` days from now, in UTC. A partition is
-- built apart and attached, which does not block writers of its parent.
CREATE FUNCTION oncehook.make_partitions(days_ahead int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  today date := (now() AT TIME ZONE 'UTC')::date;
  parent text;
  child text;
  starts timestamptz;
  ends timestamptz;
  made int := 0;
BEGIN
  -- One maker at a time; another node's maker has done the work when the lock is ours.
  PERFORM pg_advisory_xact_lock(hashtext('oncehook.make_partitions'));
  FOREACH parent IN ARRAY ARRAY['request', 'event', 'outcome', 'receipt', 'attempt'] LOOP
    FOR day IN -1 .. days_ahead LOOP
      child := parent || '_' || to_char(today + day, 'YYYYMMDD');
      CONTINUE WHEN to_regclass('oncehook.' || child) IS NOT NULL;
      starts := (today + day)::timestamp AT TIME ZONE 'UTC';
      ends := (today + day + 1)::timestamp AT TIME ZONE 'UTC';
      EXECUTE format('CREATE TABLE oncehook.%I (LIKE oncehook.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION)',
                     child, parent);
      IF parent IN ('receipt', 'attempt') THEN
        EXECUTE format('ALTER TABLE oncehook.%I ATTACH PARTITION oncehook.%I FOR VALUES FROM (%L) TO (%L)',
                       parent, child, starts, ends);
      ELSE
        EXECUTE format('ALTER TABLE oncehook.%I ATTACH PARTITION oncehook.%I FOR VALUES FROM (%L) TO (%L)',
                       parent, child, oncehook.uuid7_floor(starts), oncehook.uuid7_floor(ends));
      END IF;
      made := made + 1;
    END LOOP;
  END LOOP;
  RETURN made;
END $$;

-- What a `sql` handler's function gets.
CREATE TYPE oncehook.delivered AS (
  id          uuid,
  source      text,
  key         text,
  type        text,
  entity      text,
  occurred_at timestamptz,
  received_at timestamptz,
  body        bytea,
  effect_key  text,
  run         int,
  attempt     int
);

-- The body as jsonb, or NULL where jsonb cannot hold it (not JSON, not UTF-8, an escaped NUL).
CREATE FUNCTION oncehook.body_json(event oncehook.delivered) RETURNS jsonb
  LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN convert_from(event.body, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END $$;

-- Runs a `sql` handler over the locked deliveries of a settle batch, each in a block of its own,
-- until `budget` of handler time is spent. Returns one row per delivery it ran. An ordinary
-- exception is that delivery's verdict; deadlocks, serialization failures, lock time-outs and
-- cancellation end the whole batch.
CREATE FUNCTION oncehook.run_sql_handler(
  call text, answers_json bool, events uuid[], runs smallint[], attempts int[], effect_keys text[], source_names text[],
  budget interval,
  OUT no int, OUT answer jsonb, OUT code text, OUT message text, OUT object_name text, OUT line text
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
  began timestamptz := clock_timestamp();
  own_role name := current_user;
  own_session name := session_user;
  -- One statement for the whole batch: a look-up per event was planned anew each time and cost six
  -- times the handler. A cursor, so that one body at a time is in memory.
  stored CURSOR FOR
    SELECT given.at, e.*
      FROM unnest(events) WITH ORDINALITY AS given(event_id, at)
      LEFT JOIN LATERAL (
        SELECT e.id, e.key, e.type, e.entity, e.occurred_at, r.received_at,
               substr(r.body, e.item_offset + 1, e.item_length) AS body
          FROM oncehook.event e JOIN oncehook.request r ON r.id = e.request_id
         WHERE e.id = given.event_id LIMIT 1) e ON true;
  item record;
  event oncehook.delivered;
  context text;
  table_name text;
  column_name text;
  constraint_name text;
BEGIN
  -- The plan must not depend on how small the tables were when they were last counted.
  SET LOCAL enable_seqscan = off;
  OPEN stored;
  SET LOCAL enable_seqscan TO DEFAULT;
  LOOP
    FETCH stored INTO item;
    EXIT WHEN NOT FOUND;
    no := item.at; answer := NULL; code := NULL; message := NULL; object_name := NULL; line := NULL;
    IF item.id IS NULL THEN
      code := 'OH404'; message := 'payload-expired';
      RETURN NEXT;
      CONTINUE;
    END IF;
    event := (item.id, source_names[no], item.key, item.type, item.entity, item.occurred_at, item.received_at, item.body,
              effect_keys[no], runs[no], attempts[no]);
    BEGIN
      IF answers_json THEN
        EXECUTE 'SELECT ' || call || '($1)' INTO answer USING event;
        IF answer ->> 'result' NOT IN ('done', 'failed', 'skip') OR jsonb_typeof(answer -> 'result') = 'null' THEN
          -- Not done: what this try wrote goes with its block; the answer stays.
          RAISE EXCEPTION 'not done' USING ERRCODE = 'OHRET';
        END IF;
      ELSE
        EXECUTE 'SELECT ' || call || '($1)' USING event;
      END IF;
      SET CONSTRAINTS ALL IMMEDIATE;
    EXCEPTION WHEN SQLSTATE 'OHRET' THEN
      NULL;
    WHEN OTHERS THEN
      IF SQLSTATE LIKE '40%' OR SQLSTATE IN ('55P03', '57014') THEN
        RAISE;
      END IF;
      GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT, table_name = TABLE_NAME,
        column_name = COLUMN_NAME, constraint_name = CONSTRAINT_NAME;
      answer := NULL;
      code := SQLSTATE;
      message := SQLERRM;
      object_name := concat_ws(' ', 'table ' || nullif(table_name, ''), 'column ' || nullif(column_name, ''),
                               'constraint ' || nullif(constraint_name, ''));
      -- Only where it happened; the quoted statement may hold values.
      line := substring(context FROM 'PL/pgSQL function [^\n]* line \d+');
    END;
    -- The next one does not run in a role that this one took on.
    IF current_user <> own_role OR session_user <> own_session THEN
      RESET SESSION AUTHORIZATION;
      RESET ROLE;
    END IF;
    RETURN NEXT;
    EXIT WHEN clock_timestamp() - began > budget;
  END LOOP;
  CLOSE stored;
END $$;
