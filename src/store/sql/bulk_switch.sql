-- bulk_switch: stops a bulk replay, lets it go on, or gives it up.
-- Run by store::bulk, with its audit row. A page that is being opened is waited for.
-- $1 number  $2 states before  $3 state after
-- Rows: what it has done so far; none when it is in no such state.
UPDATE oncehook.bulk_replay
   SET state = $3, ended_at = CASE WHEN $3 = 'given_up' THEN clock_timestamp() END
 WHERE id = $1 AND state = ANY ($2::text[])
RETURNING replayed, refused
