-- ingest_reserve: reserves the keys of a batch and stores what won.
-- Run by store::ingest::reserve, first statement of the ingest transaction.
-- $1..$10 requests, $11..$28 items, $29..$31 $33 fan-out (item number, handler id, lane, priority), $32 items' causes, $34 seconds that their keys are
-- kept, NULL for ever
-- Rows: one per item whose key was new: its number and event id. The losers are read by
-- ingest_known in the next statement, whose snapshot sees the winner.
-- Keys go in sorted order, so that two batches never deadlock; a losing insert waits for the
-- winner's transaction to end.
-- With a lane a delivery is blocked at first, whatever else is in it: lane_promote, after the commit,
-- finds its head. So no insert waits for a lane that others work on.
WITH req AS MATERIALIZED (
  SELECT r.*, oncehook.uuid7(now()) AS id
    FROM unnest($1::int[], $2::int[], $3::bytea[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::uuid[])
         AS r(no, source_id, body, headers, method, path, query, peer, secret_label, correlation_id)
), item AS MATERIALIZED (
  SELECT i.*, oncehook.uuid7(now()) AS event_id
    FROM unnest($11::int[], $12::int[], $13::int[], $14::text[], $15::bytea[], $16::bytea[], $17::smallint[], $18::int[], $19::int[],
                $20::text[], $21::text[], $22::text[], $23::text[], $24::text[], $25::timestamptz[], $26::text[], $27::text[], $28::text[],
                $32::uuid[], $34::float8[])
         AS i(no, request_no, source_id, key, raw_digest, canonical_digest, digest_rule, item_offset, item_length,
              provider_id, type, entity, account, mode, occurred_at, state, state_reason, routes, caused_by, keep_key)
), won AS (
  INSERT INTO oncehook.event_key (source_id, key, event_id, raw_digest, canonical_digest, digest_rule, first_seen, expires_at)
  SELECT source_id, key, event_id, raw_digest, canonical_digest, digest_rule, now(), now() + make_interval(secs => keep_key)
    FROM item ORDER BY source_id, key COLLATE "C", no
  ON CONFLICT DO NOTHING
  RETURNING event_id
), stored_request AS (
  INSERT INTO oncehook.request (id, received_at, source_id, body, headers, method, path, query, peer, secret_label)
  SELECT id, now(), source_id, body, headers, method, path, query, peer::inet, secret_label
    FROM req WHERE EXISTS (SELECT FROM item JOIN won USING (event_id) WHERE item.request_no = req.no)
), stored_event AS (
  INSERT INTO oncehook.event (id, request_id, item_offset, item_length, source_id, key, provider_id, type, entity, account, mode,
                              occurred_at, correlation_id, state, state_reason, routes, caused_by)
  SELECT item.event_id, req.id, item_offset, item_length, item.source_id, key, provider_id, type, entity, account, mode,
         occurred_at, req.correlation_id, state, state_reason, routes::int[], caused_by
    FROM item JOIN won USING (event_id) JOIN req ON req.no = item.request_no
), fanned_out AS (
  INSERT INTO oncehook.delivery (event_id, handler_id, state, lane, lane_seq, priority)
  SELECT item.event_id, f.handler_id, CASE WHEN f.lane IS NULL THEN 'ready' ELSE 'blocked' END, f.lane,
         CASE WHEN f.lane IS NOT NULL THEN nextval('oncehook.lane_seq') END, f.priority
    FROM unnest($29::int[], $30::int[], $31::text[], $33::smallint[]) AS f(no, handler_id, lane, priority) JOIN item USING (no) JOIN won USING (event_id)
   ORDER BY f.no, f.handler_id
)
SELECT item.no, item.event_id FROM item JOIN won USING (event_id)
