-- operation_key_share: keeps the key of an operation from being renewed until the transaction ends.
-- Run by store::again, for replays of operations too, before a run is opened: ingest_renew_lock is its counterpart.
-- $1 event_id
-- Rows: 1 the key names this event: its text, the source's first name, the handler, and whether it has expired; 0 it
-- names another by now.
-- Index event_DAY_pkey, event_key_NN_pkey.
SELECT k.key, s.first_name, h.id AS handler_id, h.name AS handler, coalesce(k.expires_at <= clock_timestamp(), false) AS expired
  FROM oncehook.event e
  JOIN oncehook.event_key k ON k.source_id = e.source_id AND k.key = e.key AND k.event_id = e.id
  JOIN oncehook.source s ON s.id = e.source_id
  JOIN oncehook.handler h ON h.operation_of = e.source_id
 WHERE e.id = $1
   FOR SHARE OF k
