-- ledger_install: what a `sql` handler with a database of its own needs there.
-- Run by store::ledger::install in one transaction, or by hand; repeatable. Type and function are those of
-- schema.sql, so that a handler's function can move between both databases as it is.
CREATE SCHEMA IF NOT EXISTS oncehook;

DO $$ BEGIN
  IF to_regtype('oncehook.delivered') IS NULL THEN
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
  END IF;
  IF to_regprocedure('oncehook.body_json(oncehook.delivered)') IS NULL THEN
    CREATE FUNCTION oncehook.body_json(event oncehook.delivered) RETURNS jsonb
      LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $body$
    BEGIN
      RETURN convert_from(event.body, 'UTF8')::jsonb;
    EXCEPTION WHEN data_exception THEN
      RETURN NULL;
    END $body$;
  END IF;
END $$;

-- One row per effect: written in the transaction that has the effect, so both are there or neither. The unique
-- key is what keeps a second try from having it again. Nothing of oncehook deletes here.
CREATE TABLE IF NOT EXISTS oncehook.applied (
  effect_key text COLLATE "C" PRIMARY KEY,
  handler    text NOT NULL,
  run        int NOT NULL,                          -- the run that was answered
  answer     jsonb,                                 -- what the function answered; NULL: done
  applied_at timestamptz NOT NULL DEFAULT now(),
  repeats    int NOT NULL DEFAULT 0                 -- how often the answer was taken in place of running it again
);

-- A function that touches the row of another effect would have that one repeated, left out or answered wrongly: it is
-- refused. `oncehook.effect_key` is set by ledger_claim, so people are not concerned.
CREATE OR REPLACE FUNCTION oncehook.applied_is_of_another() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a handler may not touch oncehook.applied for another effect' USING ERRCODE = 'OH001';
END $$;
CREATE OR REPLACE TRIGGER insert_own_row BEFORE INSERT ON oncehook.applied FOR EACH ROW
  WHEN (new.effect_key <> nullif(current_setting('oncehook.effect_key', true), ''))
  EXECUTE FUNCTION oncehook.applied_is_of_another();
CREATE OR REPLACE TRIGGER update_own_row BEFORE UPDATE ON oncehook.applied FOR EACH ROW
  WHEN (old.effect_key <> nullif(current_setting('oncehook.effect_key', true), '')
     OR new.effect_key <> nullif(current_setting('oncehook.effect_key', true), ''))
  EXECUTE FUNCTION oncehook.applied_is_of_another();
CREATE OR REPLACE TRIGGER delete_own_row BEFORE DELETE ON oncehook.applied FOR EACH ROW
  WHEN (old.effect_key <> nullif(current_setting('oncehook.effect_key', true), ''))
  EXECUTE FUNCTION oncehook.applied_is_of_another();
CREATE OR REPLACE TRIGGER truncate_no_rows BEFORE TRUNCATE ON oncehook.applied FOR EACH STATEMENT
  WHEN (current_setting('oncehook.effect_key', true) <> '')
  EXECUTE FUNCTION oncehook.applied_is_of_another();
