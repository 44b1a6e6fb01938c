-- bulk_claim: takes the next page of a bulk replay that is due, for whoever asks.
-- Run by store::bulk::page, a transaction of its own.
-- $1 lease (seconds)  $2 this bulk replay, or NULL for any
-- Rows: what the page needs, at most one. The lease only spares others the reading: bulk_lock decides
-- whose page counts. Who dies leaves it to whoever comes when the lease has ended.
-- Index bulk_replay_due.
UPDATE oncehook.bulk_replay b
   SET next_at = clock_timestamp() + make_interval(secs => $1)
 WHERE b.ctid = ANY (ARRAY(
   SELECT ctid FROM oncehook.bulk_replay
    WHERE state = 'running' AND next_at <= clock_timestamp() AND ($2::bigint IS NULL OR id = $2)
    ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED))
RETURNING b.*
