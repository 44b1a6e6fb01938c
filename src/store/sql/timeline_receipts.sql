-- timeline_receipts: later copies, newest first.
-- $1 event_id
-- Index receipt_DAY_event_id_idx.
SELECT received_at, count, secret_label, sum(count) OVER ()::bigint AS total FROM oncehook.receipt WHERE event_id = $1 ORDER BY received_at DESC LIMIT 100
