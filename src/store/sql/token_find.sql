-- token_find: what a request's token is judged by.
-- $1 public id
-- Rows: 1 or 0. `left_us`: microseconds until its end, not below 0, by the database's clock, so that no
-- node's clock counts; NULL: it has no end. `unused`: the time of its last use may be written again.
SELECT name, roles, hash, revoked_at IS NOT NULL AS revoked,
       CASE WHEN expires_at IS NOT NULL THEN (greatest(extract(epoch FROM expires_at - now()), 0) * 1000000)::bigint END AS left_us,
       coalesce(last_used_at < now() - interval '1 minute', true) AS unused
  FROM oncehook.token WHERE id = $1
