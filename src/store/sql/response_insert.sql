-- response_insert: the answers of operations whose runs end.
-- Run by store::response::write, in the transaction that writes their outcomes.
-- $1 event_ids  $2 handler_ids  $3 runs  $4 statuses  $5 headers  $6 bodies
-- Rows: as many as given, each of a registered handler.
INSERT INTO oncehook.response (event_id, handler_id, run, status, headers, body, expires_at)
SELECT q.event_id, q.handler_id, q.run, q.status, q.headers, q.body, clock_timestamp() + h.keep_response
  FROM unnest($1::uuid[], $2::int[], $3::smallint[], $4::int[], $5::jsonb[], $6::bytea[])
       AS q(event_id, handler_id, run, status, headers, body)
  JOIN oncehook.handler h ON h.id = q.handler_id
