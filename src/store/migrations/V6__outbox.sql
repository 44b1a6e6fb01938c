-- Events that are emitted inside a transaction. See schema.sql for what the columns mean.

ALTER TABLE oncehook.event ADD COLUMN caused_by uuid;

CREATE TABLE oncehook.emitted (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source_id      int NOT NULL,
  key            text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
  type           text COLLATE "C",
  entity         text COLLATE "C",
  occurred_at    timestamptz,
  body           bytea NOT NULL,
  caused_by      uuid,
  correlation_id uuid NOT NULL,
  emitted_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  lease_until    timestamptz NOT NULL DEFAULT '-infinity'
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 1);

CREATE FUNCTION oncehook.emit_bytes(
  source text, key text, type text, body bytea, entity text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
  cause oncehook.delivered DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  to_source int;
BEGIN
  SELECT s.id INTO to_source FROM oncehook.source s WHERE s.name = emit_bytes.source AND s.recipe = 'internal';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'oncehook.emit: no source % with provider = "internal" is registered', quote_nullable(source)
      USING HINT = 'A running node registers the sources of its configuration.';
  END IF;
  IF key IS NULL OR octet_length(key) NOT BETWEEN 1 AND 1024 THEN
    RAISE EXCEPTION 'oncehook.emit: a key has 1 to 1024 bytes';
  END IF;
  IF body IS NULL OR octet_length(body) > 1048576 THEN
    RAISE EXCEPTION 'oncehook.emit: a body is given and has 1 MiB at most';
  END IF;
  IF octet_length(type) > 1024 OR octet_length(entity) > 1024 THEN
    RAISE EXCEPTION 'oncehook.emit: type and entity have 1024 bytes at most';
  END IF;
  IF NOT isfinite(occurred_at) THEN
    RAISE EXCEPTION 'oncehook.emit: occurred_at is a moment, or left out';
  END IF;
  INSERT INTO oncehook.emitted (source_id, key, type, entity, occurred_at, body, caused_by, correlation_id)
  VALUES (to_source, key, type, entity, coalesce(occurred_at, clock_timestamp()), body, cause.id,
          coalesce((SELECT e.correlation_id FROM oncehook.event e WHERE e.id = cause.id), gen_random_uuid()));
END $$;

CREATE FUNCTION oncehook.emit(
  source text, key text, type text, body jsonb, entity text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
  cause oncehook.delivered DEFAULT NULL
) RETURNS void LANGUAGE sql AS $$
  SELECT oncehook.emit_bytes(source, key, type, convert_to(body::text, 'UTF8'), entity, occurred_at, cause);
$$;
