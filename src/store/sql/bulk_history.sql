-- bulk_history: what people did to a bulk replay, and how it ended.
-- Run by store::bulk.
-- $1 its number, as the audit has it for a subject
-- Rows: by time; its own only, since a handler's name may be a number as well. Index audit_subject.
SELECT at, actor, reason,
       CASE action WHEN 'replay.bulk' THEN 'started'
                   WHEN 'replay.bulk.stop' THEN 'stopped'
                   WHEN 'replay.bulk.continue' THEN 'continued'
                   ELSE after ->> 'state' END AS what
  FROM oncehook.audit
 WHERE subject = $1 AND action IN ('replay.bulk', 'replay.bulk.stop', 'replay.bulk.continue', 'replay.bulk.end')
 ORDER BY id
