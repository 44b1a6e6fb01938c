-- verify_outcome_decided: outcomes that do not say rightly who decided; an operator's without audit; a
-- probe's without a call whose result was unknown; a webhook's without the event that said so.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. In an operator's name `handlers retire` cancels and `resolve` decides. Index
-- audit_subject and attempt_event, for operators', probes' and webhooks' outcomes only.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run, b.detail
  FROM (SELECT o.event_id, o.handler_id, o.run::int AS run,
               CASE WHEN o.decided_by IS NULL THEN o.result || ', and nobody decided it'
                    WHEN o.result = 'cancelled' AND o.decided_by <> 'operator' THEN 'cancelled, decided by ' || o.decided_by
                    WHEN o.result = 'cancelled'
                     AND NOT EXISTS (SELECT FROM oncehook.audit a
                                      WHERE a.subject = ANY (h.former_names || ARRAY[h.name, h.first_name]) AND a.action = 'handler.retire'
                                        AND a.at <= o.finished_at)
                      THEN 'cancelled, and the audit has no handlers retire'
                    WHEN o.decided_by = 'operator' AND o.result <> 'cancelled'
                     AND NOT EXISTS (SELECT FROM oncehook.audit a
                                      WHERE a.subject = o.event_id::text AND a.action = 'event.resolve'
                                        AND a.after ->> 'run' = o.run::text AND a.after ->> 'as' = o.result
                                        AND a.after ->> 'handler' = ANY (h.former_names || ARRAY[h.name, h.first_name]))
                      THEN o.result || ', decided by operator, and the audit has no resolve'
                    WHEN o.decided_by = 'probe'
                     AND NOT EXISTS (SELECT FROM oncehook.attempt a
                                      WHERE a.event_id = o.event_id AND a.handler_id = o.handler_id AND a.run = o.run
                                        AND a.verdict IN ('unknown', 'lost'))
                      THEN o.result || ', decided by probe, and no call was unknown'
                    WHEN o.decided_by = 'webhook'
                     AND NOT EXISTS (SELECT FROM oncehook.attempt a
                                      WHERE a.event_id = o.event_id AND a.handler_id = o.handler_id AND a.run = o.run
                                        AND a.verdict = 'evidence' AND a.answer = o.result AND a.told_by IS NOT NULL)
                      THEN o.result || ', decided by webhook, and no event is kept that says so'
               END AS detail
          FROM oncehook.outcome o
          LEFT JOIN oncehook.handler h ON h.id = o.handler_id
         WHERE o.event_id >= oncehook.uuid7_floor($2)) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
