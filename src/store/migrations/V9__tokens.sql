-- Tokens of the API listener. See schema.sql for what the columns mean.

CREATE TABLE oncehook.token (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name         text COLLATE "C" NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$' AND name <> 'local'),
  roles        text[] COLLATE "C" NOT NULL CHECK (cardinality(roles) > 0 AND roles <@ ARRAY['read', 'operate', 'submit']),
  hash         bytea NOT NULL CHECK (octet_length(hash) = 32),
  created_at   timestamptz NOT NULL DEFAULT now(),
  created_by   text NOT NULL,
  expires_at   timestamptz,
  last_used_at timestamptz,
  revoked_at   timestamptz,
  revoked_by   text,
  CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
) WITH (fillfactor = 50);
