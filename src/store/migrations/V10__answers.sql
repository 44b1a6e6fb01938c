-- The loop of `sql` handlers: only its own word for "not done" is one, and what the function returns is what it
-- returns now. Tokens of a `rate` come back. See schema.sql. Nodes of before call the loop as they did; they
-- give no tokens back.

ALTER TABLE oncehook.handler_cap ADD COLUMN given_back float8 NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION oncehook.run_sql_handler(
  call text, answers_json bool, events uuid[], runs smallint[], attempts int[], effect_keys text[], source_names text[],
  budget interval,
  OUT no int, OUT answer jsonb, OUT code text, OUT message text, OUT object_name text, OUT line text
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
      SET CONSTRAINTS ALL IMMEDIATE;
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE LIKE '40%' OR SQLSTATE IN ('55P03', '57014') THEN
        RAISE;
      END IF;
      IF NOT undone THEN
        GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT, table_name = TABLE_NAME,
          column_name = COLUMN_NAME, constraint_name = CONSTRAINT_NAME;
        answer := NULL;
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
    EXIT WHEN clock_timestamp() - began > budget;
  END LOOP;
  CLOSE stored;
  -- Replaced in the middle: what it answered was perhaps not read. Nothing of it stays.
  IF to_regprocedure(call || '(oncehook.delivered)') IS DISTINCT FROM called THEN
    RAISE EXCEPTION 'the function was replaced while it ran' USING ERRCODE = 'serialization_failure';
  END IF;
END $$;
