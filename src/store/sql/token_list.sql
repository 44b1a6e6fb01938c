-- token_list: every token, without what could be checked against a secret.
-- Rows: in the order in which they were made; `expired` by the database's clock.
SELECT id, name, roles, created_at, created_by, expires_at, coalesce(expires_at <= now(), false) AS expired,
       last_used_at, revoked_at, revoked_by
  FROM oncehook.token ORDER BY id
