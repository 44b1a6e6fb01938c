-- bulk_overlap: bulk replays that may mean a run that a new one means.
-- Run by store::bulk, behind bulk_turn.
-- $1 source id  $2 type, * for any run of characters  $3 handler id  $4 received since  $5 received until, or NULL for now
-- $6 whether it runs again what has succeeded
-- Rows: those that have not ended, whatever their results: what one makes succeed another would force. And, for
-- one that runs again what has succeeded, its like that did so within a day: what they ran fits again.
SELECT id, state, actor, replayed, ended_at IS NULL AS open, extract(epoch FROM clock_timestamp() - ended_at)::float8 AS ended_s
  FROM oncehook.bulk_replay
 WHERE (ended_at IS NULL OR ($6::bool AND force AND 'succeeded' = ANY (results) AND replayed > 0 AND ended_at > now() - interval '1 day'))
   AND ($1::int IS NULL OR source_id IS NULL OR source_id = $1)
   AND ($3::int IS NULL OR handler_id IS NULL OR handler_id = $3)
   AND ($2::text IS NULL OR type IS NULL OR type = $2 OR type LIKE '%*%' OR $2 LIKE '%*%')
   AND since < coalesce($5::timestamptz, 'infinity') AND until > $4
 ORDER BY (ended_at IS NULL) DESC, id DESC
