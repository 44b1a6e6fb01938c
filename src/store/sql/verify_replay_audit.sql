-- verify_replay_audit: replays, live or finished, of which the audit knows nothing.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Index audit_subject, one probe per replay.
SELECT count(*) OVER () AS found, r.event_id, NULL::int AS source_id, NULL::text AS key, r.handler_id, r.run,
       'a replay, and the audit has no such row'::text AS detail
  FROM (SELECT event_id, handler_id, run::int AS run FROM oncehook.delivery WHERE run > 1
         UNION ALL
        SELECT event_id, handler_id, run::int FROM oncehook.outcome WHERE event_id >= oncehook.uuid7_floor($2) AND run > 1) r
 WHERE NOT EXISTS (SELECT FROM oncehook.audit a JOIN oncehook.handler h ON h.id = r.handler_id
                    WHERE a.subject = r.event_id::text AND ((a.action IN ('event.replay', 'event.replay.force', 'operation.again') AND a.after ->> 'run' = r.run::text)
                           OR (a.action = 'event.resolve' AND a.after ->> 'new_run' = r.run::text))
                      AND a.after ->> 'handler' = ANY (h.former_names || ARRAY[h.name, h.first_name]))
 LIMIT (SELECT $1::bigint)
