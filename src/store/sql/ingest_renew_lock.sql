-- ingest_renew_lock: locks an expired key, so that nothing of its event begins before the renewal is decided.
-- Run by store::ingest::renew, before ingest_renew, whose snapshot then sees what was begun until now: replay and
-- run_again lock the key (operation_key_share) before they open a run.
-- $1 source_id  $2 key  $3 event_id that it named when it was read
-- Rows: 1 locked; 0 another was quicker.
-- Index event_key_NN_pkey.
SELECT event_id FROM oncehook.event_key
 WHERE source_id = $1 AND key = $2 AND event_id = $3 AND expires_at <= clock_timestamp() FOR UPDATE
