-- verify_emitted: emitted events that nobody has stored for long.
-- Run by store::verify.
-- $1 examples  $2 patience (seconds)
-- Rows: findings, the oldest first. No node knows the source, or none can store.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, e.source_id, e.key, NULL::int AS handler_id, NULL::int AS run,
       format('emitted %s s ago', floor(extract(epoch FROM now() - e.emitted_at))) AS detail
  FROM oncehook.emitted e
 WHERE e.emitted_at < now() - make_interval(secs => $2)
 ORDER BY e.id LIMIT (SELECT $1::bigint)
