-- verify_audit_run: replays and decisions in the audit whose run is neither live nor finished.
-- Run by store::verify.
-- $1 examples  $2 written since
-- Rows: findings. Index delivery_pkey, outcome_DAY_pkey, one probe each per command.
SELECT count(*) OVER () AS found, r.event_id, NULL::int AS source_id, NULL::text AS key, r.handler_id, r.run,
       'in the audit as ' || r.action || ', and neither live nor finished' AS detail
  FROM (SELECT a.action, a.subject::uuid AS event_id, h.id AS handler_id, (a.after ->> 'run')::int AS run
          FROM oncehook.audit a
          JOIN oncehook.handler h ON a.after ->> 'handler' = ANY (h.former_names || ARRAY[h.name, h.first_name])
         WHERE a.at >= $2 AND a.action IN ('event.replay', 'event.replay.force', 'event.replay.missing', 'event.resolve', 'operation.again')) r
 WHERE NOT EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = r.event_id AND d.handler_id = r.handler_id AND d.run >= r.run)
   AND NOT EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = r.event_id AND o.handler_id = r.handler_id AND o.run = r.run)
 LIMIT (SELECT $1::bigint)
