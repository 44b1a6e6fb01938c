-- Operations: keys that a client chose, answers that are kept. See schema.sql for what the columns mean.
-- Nodes of before know no operation: they neither make nor claim any. `run_sql_handler` takes their calls as before.

ALTER TABLE oncehook.event_key
  ADD COLUMN generation smallint NOT NULL DEFAULT 0,
  ADD COLUMN expires_at timestamptz;

ALTER TABLE oncehook.handler
  ADD COLUMN operation_of int,
  ADD COLUMN keep_response interval;

ALTER TABLE oncehook.outcome ADD COLUMN external_id text;

ALTER TABLE oncehook.attempt
  ADD COLUMN external_id text,
  ADD COLUMN status smallint,
  ADD COLUMN headers jsonb,
  ADD COLUMN body bytea,
  ADD CONSTRAINT attempt_response CHECK ((status IS NULL) = (headers IS NULL) AND (status IS NULL) = (body IS NULL));

-- The same content can be a conflict of each intent that a key named in turn.
ALTER TABLE oncehook.conflict
  DROP CONSTRAINT conflict_pkey,
  ADD PRIMARY KEY (source_id, key, raw_digest, event_id);

CREATE TABLE oncehook.digest_rule (
  source_id  int NOT NULL,
  id         smallint NOT NULL CHECK (id > 0),
  volatile   text[] COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (source_id, id),
  UNIQUE (source_id, volatile)
);

CREATE TABLE oncehook.response (
  event_id   uuid NOT NULL,
  handler_id int NOT NULL,
  run        smallint NOT NULL,
  status     smallint NOT NULL CHECK (status BETWEEN 200 AND 599),
  headers    jsonb,
  body       bytea CHECK (octet_length(body) <= 8388608),
  expires_at timestamptz,
  purged_at  timestamptz,
  PRIMARY KEY (event_id, handler_id, run),
  CONSTRAINT response_purged CHECK ((purged_at IS NULL) = (body IS NOT NULL) AND (headers IS NULL) = (body IS NULL))
) PARTITION BY RANGE (event_id);
CREATE INDEX response_expires ON oncehook.response (expires_at) WHERE purged_at IS NULL AND expires_at IS NOT NULL;

DO $$
BEGIN
  ALTER TABLE oncehook.response ALTER body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
  NULL;
END $$;

CREATE OR REPLACE FUNCTION oncehook.make_partitions(days_ahead int) RETURNS int LANGUAGE plpgsql AS $$
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
  FOREACH parent IN ARRAY ARRAY['request', 'event', 'outcome', 'response', 'receipt', 'attempt'] LOOP
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

CREATE FUNCTION oncehook.response_of(
  answer jsonb, OUT status int, OUT headers jsonb, OUT body bytea, OUT external_id text
) LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  bodies int;
  media text;
BEGIN
  IF answer IS NULL OR jsonb_typeof(answer) <> 'object' THEN
    RETURN;
  END IF;
  IF jsonb_typeof(answer -> 'external_id') IN ('string', 'number') THEN
    external_id := answer ->> 'external_id';
  END IF;
  bodies := (answer ? 'body')::int + (answer ? 'body_text')::int + (answer ? 'body_base64')::int;
  IF bodies = 0 AND NOT answer ? 'status' AND NOT answer ? 'headers' THEN
    RETURN;
  END IF;
  IF bodies > 1 THEN
    RAISE EXCEPTION 'the answer has more than one of body, body_text and body_base64' USING ERRCODE = 'OH001';
  END IF;
  IF NOT answer ? 'status' THEN
    status := CASE WHEN answer ->> 'result' = 'failed' THEN 422 ELSE 200 END;
  ELSIF jsonb_typeof(answer -> 'status') = 'number' AND answer ->> 'status' ~ '^[2-5][0-9][0-9]$' THEN
    status := (answer ->> 'status')::int;
  ELSE
    RAISE EXCEPTION 'the answer''s status is not one of 200 to 599' USING ERRCODE = 'OH001';
  END IF;
  headers := coalesce(answer -> 'headers', '{}');
  IF jsonb_typeof(headers) <> 'object' OR EXISTS (
    SELECT FROM jsonb_each(headers) h
     WHERE h.key !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]{1,200}$' OR jsonb_typeof(h.value) <> 'string'
        OR octet_length(h.value #>> '{}') > 8002 OR h.value #>> '{}' !~ '^([!-~]([ -~]*[!-~])?)?$') THEN
    RAISE EXCEPTION 'a header of the answer is not one that HTTP can carry' USING ERRCODE = 'OH001';
  END IF;
  SELECT coalesce(jsonb_agg(jsonb_build_array(lower(h.key), h.value) ORDER BY lower(h.key)), '[]') INTO headers
    FROM jsonb_each(headers) h;
  body := '';
  IF answer ? 'body' THEN
    body := convert_to((answer -> 'body')::text, 'UTF8');
    media := 'application/json';
  ELSIF answer ? 'body_text' THEN
    IF jsonb_typeof(answer -> 'body_text') <> 'string' THEN
      RAISE EXCEPTION 'the answer''s body_text is no text' USING ERRCODE = 'OH001';
    END IF;
    body := convert_to(answer ->> 'body_text', 'UTF8');
    media := 'text/plain; charset=utf-8';
  ELSIF answer ? 'body_base64' THEN
    BEGIN
      body := decode(answer ->> 'body_base64', 'base64');
    EXCEPTION WHEN data_exception THEN
      body := NULL;
    END;
    IF body IS NULL THEN
      RAISE EXCEPTION 'the answer''s body_base64 is not base64' USING ERRCODE = 'OH001';
    END IF;
    media := 'application/octet-stream';
  END IF;
  IF octet_length(body) > 8388608 THEN
    RAISE EXCEPTION 'the answer''s body is longer than 8 MiB' USING ERRCODE = 'OH001';
  END IF;
  IF status IN (204, 205, 304) AND body <> '' THEN
    RAISE EXCEPTION 'an answer of this status has no body' USING ERRCODE = 'OH001';
  END IF;
  IF media IS NOT NULL AND NOT EXISTS (SELECT FROM jsonb_array_elements(headers) h WHERE h ->> 0 = 'content-type') THEN
    headers := headers || jsonb_build_array(jsonb_build_array('content-type', media));
  END IF;
END $$;

-- Other columns to return: a function of the same arguments cannot be replaced.
DROP FUNCTION oncehook.run_sql_handler(text, bool, uuid[], smallint[], int[], text[], text[], interval);

CREATE FUNCTION oncehook.run_sql_handler(
  call text, answers_json bool, events uuid[], runs smallint[], attempts int[], effect_keys text[], source_names text[],
  budget interval, responds bool DEFAULT false,
  OUT no int, OUT answer jsonb, OUT code text, OUT message text, OUT object_name text, OUT line text,
  OUT status int, OUT headers jsonb, OUT body bytea, OUT external_id text
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
  began timestamptz := clock_timestamp();
  own_role name := current_user;
  own_session name := session_user;
  called regprocedure := to_regprocedure(call || '(oncehook.delivered)');
  returns regtype := (SELECT prorettype FROM pg_catalog.pg_proc WHERE oid = called);
  undone bool;
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
  response_bytes bigint := 0;
BEGIN
  -- The plan must not depend on how small the tables were when they were last counted.
  SET LOCAL enable_seqscan = off;
  OPEN stored;
  SET LOCAL enable_seqscan TO DEFAULT;
  LOOP
    FETCH stored INTO item;
    EXIT WHEN NOT FOUND;
    no := item.at; answer := NULL; code := NULL; message := NULL; object_name := NULL; line := NULL;
    status := NULL; headers := NULL; body := NULL; external_id := NULL;
    IF item.id IS NULL THEN
      code := 'OH404'; message := 'payload-expired';
      RETURN NEXT;
      CONTINUE;
    END IF;
    event := (item.id, source_names[no], item.key, item.type, item.entity, item.occurred_at, item.received_at, item.body,
              effect_keys[no], runs[no], attempts[no]);
    undone := false;
    BEGIN
      IF returns = 'jsonb'::regtype THEN
        EXECUTE 'SELECT ' || call || '($1)' INTO answer USING event;
        IF answer ->> 'result' NOT IN ('done', 'failed', 'skip') OR jsonb_typeof(answer -> 'result') = 'null' THEN
          -- Not done: what this try wrote goes with its block; the answer stays. The function may raise this code
          -- too: then it is an error like any other.
          undone := true;
          RAISE EXCEPTION 'not done' USING ERRCODE = 'OHRET';
        END IF;
      ELSIF returns = 'void'::regtype THEN
        EXECUTE 'SELECT ' || call || '($1)' USING event;
      ELSIF returns IS NULL THEN
        -- A call may find another one, by a default or a polymorphic argument, whose answer nobody would read.
        RAISE EXCEPTION 'there is no function %(oncehook.delivered) now', call;
      ELSE
        RAISE EXCEPTION 'the function returns % now: it must return void or jsonb', returns;
      END IF;
      IF responds THEN
        IF current_user <> own_role OR session_user <> own_session THEN
          RESET SESSION AUTHORIZATION;
          RESET ROLE;
        END IF;
        -- In the block: the effect of what cannot be stored is undone.
        SELECT r.status, r.headers, r.body, r.external_id INTO status, headers, body, external_id
          FROM oncehook.response_of(answer) r;
      END IF;
      SET CONSTRAINTS ALL IMMEDIATE;
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE LIKE '40%' OR SQLSTATE IN ('55P03', '57014') THEN
        RAISE;
      END IF;
      IF NOT undone THEN
        GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT, table_name = TABLE_NAME,
          column_name = COLUMN_NAME, constraint_name = CONSTRAINT_NAME;
        answer := NULL;
        status := NULL; headers := NULL; body := NULL; external_id := NULL;
        code := SQLSTATE;
        message := SQLERRM;
        object_name := concat_ws(' ', 'table ' || nullif(table_name, ''), 'column ' || nullif(column_name, ''),
                                 'constraint ' || nullif(constraint_name, ''));
        -- Only where it happened; the quoted statement may hold values.
        line := substring(context FROM 'PL/pgSQL function [^\n]* line \d+');
      END IF;
    END;
    -- The next one does not run in a role that this one took on.
    IF current_user <> own_role OR session_user <> own_session THEN
      RESET SESSION AUTHORIZATION;
      RESET ROLE;
    END IF;
    RETURN NEXT;
    -- Responses are kept in memory until the batch is written.
    response_bytes := response_bytes + coalesce(octet_length(body), 0);
    EXIT WHEN clock_timestamp() - began > budget OR response_bytes > 8388608;
  END LOOP;
  CLOSE stored;
  -- Replaced in the middle: what it answered was perhaps not read. Nothing of it stays.
  IF to_regprocedure(call || '(oncehook.delivered)') IS DISTINCT FROM called THEN
    RAISE EXCEPTION 'the function was replaced while it ran' USING ERRCODE = 'serialization_failure';
  END IF;
END $$;
