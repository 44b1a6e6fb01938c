-- event_one: one event with its request.
-- Run by store::query::timeline.
-- $1 event_id
-- Index event_DAY_pkey, request_DAY_pkey.
SELECT e.provider_id, e.type, e.entity, e.account, e.mode, e.occurred_at, e.state, e.state_reason,
       r.received_at, octet_length(r.body)::bigint AS body_bytes, r.secret_label, r.peer::text AS peer, r.path, r.headers,
       e.correlation_id::text AS correlation_id, s.name AS cause_source, c.key AS cause_key
  FROM oncehook.event e LEFT JOIN oncehook.request r ON r.id = e.request_id
  LEFT JOIN oncehook.event c ON c.id = e.caused_by LEFT JOIN oncehook.source s ON s.id = c.source_id
 WHERE e.id = $1
