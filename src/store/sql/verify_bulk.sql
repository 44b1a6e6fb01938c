-- verify_bulk: bulk replays that ran something twice, or whose count is not that of the audit.
-- Run by store::verify.
-- $1 examples  $2 started since
-- Rows: findings. Index audit_bulk, the rows of each bulk replay once.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, NULL::int AS source_id, NULL::text AS key, NULL::int AS handler_id, NULL::int AS run, detail
  FROM (SELECT format('bulk %s counts %s new runs; the audit has %s, of %s events and handlers', b.id, b.replayed, a.runs, a.pairs) AS detail
          FROM oncehook.bulk_replay b
         CROSS JOIN LATERAL (SELECT count(*) AS runs, count(DISTINCT (subject, after ->> 'handler')) AS pairs
                               FROM oncehook.audit WHERE after ->> 'bulk' = b.id::text) a
         WHERE b.started_at >= $2 AND (a.runs <> b.replayed OR a.runs <> a.pairs)
         UNION ALL
        SELECT format('the audit names bulk %s, which is not there', a.after ->> 'bulk')
          FROM oncehook.audit a
         WHERE a.at >= $2 AND a.after ->> 'bulk' IS NOT NULL
           AND NOT EXISTS (SELECT FROM oncehook.bulk_replay b WHERE b.id::text = a.after ->> 'bulk')
         UNION ALL
        SELECT format('bulk %s is %s, and the audit does not say so', b.id, b.state)
          FROM oncehook.bulk_replay b
         WHERE b.started_at >= $2 AND b.ended_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM oncehook.audit a WHERE a.subject = b.id::text AND a.action = 'replay.bulk.end')) wrong
 ORDER BY detail LIMIT (SELECT $1::bigint)
