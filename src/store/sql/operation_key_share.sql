-- operation_key_share: keeps the keys of operations from being renewed until the transaction ends.
-- Run by store::again, for replays of operations too, before runs are opened: ingest_renew_lock is its counterpart.
-- $1 event_ids
-- Rows: one per event that its key names still: its text, the source's first name, the handler, and whether it has
-- expired. Locked in the order in which a batch renews keys, which the sorted sub-select keeps: two orders would
-- deadlock.
-- Index event_DAY_pkey, event_key_NN_pkey; every LIMIT keeps a look-up below its join.
SELECT k.key, e.first_name, e.handler_id, e.handler, k.expired
  FROM (SELECT e.id, e.source_id, e.key, s.first_name, s.handler_id, s.handler
          FROM unnest($1::uuid[]) AS q(event_id)
         CROSS JOIN LATERAL (SELECT id, source_id, key FROM oncehook.event WHERE id = q.event_id LIMIT 1) e
         CROSS JOIN LATERAL (SELECT s.first_name, h.id AS handler_id, h.name AS handler
                               FROM oncehook.source s JOIN oncehook.handler h ON h.operation_of = s.id
                              WHERE s.id = e.source_id LIMIT 1) s
         ORDER BY e.source_id, e.key COLLATE "C") e
 CROSS JOIN LATERAL (SELECT key, coalesce(expires_at <= clock_timestamp(), false) AS expired FROM oncehook.event_key
                      WHERE source_id = e.source_id AND key = e.key AND event_id = e.id LIMIT 1 FOR SHARE) k
