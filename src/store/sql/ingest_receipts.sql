-- ingest_receipts: one row per known key and batch.
-- Run by store::ingest::record_known, in the ingest transaction. It also makes a duplicate's
-- COMMIT write, so that it waits for the standbys and cannot be acknowledged ahead of an original
-- that is visible but not yet replicated.
-- $1 event_ids  $2 counts  $3 secret labels
INSERT INTO oncehook.receipt (event_id, received_at, count, secret_label)
SELECT u.event_id, now(), u.count, u.secret_label FROM unnest($1::uuid[], $2::int[], $3::text[]) AS u(event_id, count, secret_label)
