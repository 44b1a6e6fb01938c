-- verify_durability: settings of the server under which a commit is not durable.
-- Run by store::verify.
-- $1 examples
-- Rows: findings. `synchronous_commit` is not among them: our transactions set it themselves.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, NULL::int AS source_id, NULL::text AS key, NULL::int AS handler_id, NULL::int AS run,
       name || ' = off' AS detail
  FROM unnest(ARRAY['fsync', 'full_page_writes']) AS name
 WHERE current_setting(name) = 'off'
 ORDER BY name LIMIT (SELECT $1::bigint)
