-- verify_outcome_decided: outcomes that do not say rightly who decided; an operator's without audit.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Only `handlers retire` decides in an operator's name. Index audit_subject, for
-- operators' outcomes only.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT o.event_id, o.handler_id, o.run::int AS run,
               CASE WHEN o.decided_by IS NULL THEN o.result || ', and nobody decided it'
                    WHEN (o.decided_by = 'operator') <> (o.result = 'cancelled') THEN o.result || ', decided by ' || o.decided_by
                    WHEN o.decided_by = 'operator'
                     AND NOT EXISTS (SELECT FROM oncehook.audit a
                                      WHERE a.subject = ANY (h.former_names || ARRAY[h.name, h.first_name]) AND a.action = 'handler.retire'
                                        AND a.at <= o.finished_at)
                      THEN 'cancelled, and the audit has no handlers retire'
               END AS detail
          FROM oncehook.outcome o
          LEFT JOIN oncehook.handler h ON h.id = o.handler_id
         WHERE o.event_id >= oncehook.uuid7_floor($2)) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
