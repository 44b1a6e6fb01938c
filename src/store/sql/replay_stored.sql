-- replay_stored: what of stored events their lanes are read from.
-- Run by store::replay, in the transaction that opens their new runs.
-- $1 event_ids
-- Rows: those whose payload is still there. Index event_DAY_pkey, request_DAY_pkey.
SELECT e.id, e.entity, e.account, substr(r.body, e.item_offset + 1, e.item_length) AS body
  FROM oncehook.event e JOIN oncehook.request r ON r.id = e.request_id
 WHERE e.id = ANY ($1::uuid[])
