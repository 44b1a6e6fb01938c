-- ingest_renew: an expired key of an operation names a new intent: compare and set, never delete and insert.
-- Run by store::ingest::renew, in the ingest transaction, under ingest_renew_lock.
-- $1 source_id  $2 key  $3 event_id that it named  $4 raw digest  $5 canonical digest  $6 digest rule
-- $7 seconds that the key is kept  $8 body  $9 headers  $10 method  $11 path  $12 query  $13 peer  $14 secret label
-- $15 correlation_id  $16 item offset  $17 item length  $18 handler_ids  $19 lanes  $20 priorities
-- Rows: 1 with the new event_id; 0: something of the old event is live, or a call of it may be under way.
-- The generation is above that of every run that the key ever had, so each intent has effect keys of its own. The
-- answers of the old one lasted as long as the key.
-- Index event_key_NN_pkey, delivery_pkey, attempt_DAY_event_id_idx, outcome_DAY_pkey, response_DAY_pkey.
WITH made AS MATERIALIZED (
  SELECT oncehook.uuid7(now()) AS event_id, oncehook.uuid7(now()) AS request_id,
         (SELECT max(generation) FROM oncehook.outcome WHERE event_id = $3) AS used
), renewed AS (
  UPDATE oncehook.event_key k
     SET event_id = made.event_id, raw_digest = $4, canonical_digest = $5, digest_rule = $6, first_seen = now(),
         expires_at = now() + make_interval(secs => $7::float8), generation = greatest(k.generation, made.used) + 1
    FROM made
   WHERE k.source_id = $1 AND k.key = $2 AND k.event_id = $3 AND k.expires_at <= clock_timestamp()
     AND greatest(k.generation, made.used) < 32767
     AND NOT EXISTS (SELECT FROM oncehook.delivery WHERE event_id = $3)
     AND NOT EXISTS (SELECT FROM oncehook.attempt WHERE event_id = $3 AND in_flight_until > clock_timestamp())
  RETURNING k.event_id, made.request_id, k.source_id, k.key, k.generation
), answers_end AS (
  UPDATE oncehook.response SET expires_at = now()
   WHERE event_id = $3 AND purged_at IS NULL AND (expires_at IS NULL OR expires_at > now()) AND EXISTS (SELECT FROM renewed)
), stored_request AS (
  INSERT INTO oncehook.request (id, received_at, source_id, body, headers, method, path, query, peer, secret_label)
  SELECT request_id, now(), source_id, $8, $9, $10, $11, $12, $13::text::inet, $14 FROM renewed
), stored_event AS (
  INSERT INTO oncehook.event (id, request_id, item_offset, item_length, source_id, key, correlation_id, routes)
  SELECT event_id, request_id, $16::int, $17::int, source_id, key, $15, $18::int[] FROM renewed
), fanned_out AS (
  INSERT INTO oncehook.delivery (event_id, handler_id, generation, state, lane, lane_seq, priority)
  SELECT renewed.event_id, f.handler_id, renewed.generation, CASE WHEN f.lane IS NULL THEN 'ready' ELSE 'blocked' END, f.lane,
         CASE WHEN f.lane IS NOT NULL THEN nextval('oncehook.lane_seq') END, f.priority
    FROM renewed CROSS JOIN unnest($18::int[], $19::text[], $20::smallint[]) AS f(handler_id, lane, priority)
)
SELECT event_id FROM renewed
