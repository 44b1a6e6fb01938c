-- verify_bulk_open: bulk replays that have not ended: no finding of anything wrong.
-- Run by store::verify.
-- $1 examples
-- Rows: one each.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, b.source_id, NULL::text AS key, b.handler_id, NULL::int AS run,
       format('bulk %s, %s, started %s by %s: %s open again so far', b.id, b.state,
              to_char(b.started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), b.actor, b.replayed) AS detail
  FROM oncehook.bulk_replay b
 WHERE b.ended_at IS NULL ORDER BY b.id LIMIT (SELECT $1::bigint)
