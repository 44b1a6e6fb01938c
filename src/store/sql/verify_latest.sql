-- verify_latest: newest versions that no successful run has applied.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Index outcome_DAY_pkey, one probe per object.
SELECT count(*) OVER () AS found, l.event_id, NULL::int AS source_id, NULL::text AS key, l.handler_id, NULL::int AS run,
       format('version %s of %s was applied, and no run of it succeeded', l.version, l.entity) AS detail
  FROM oncehook.latest l
 WHERE l.event_id >= oncehook.uuid7_floor($2)
   AND NOT EXISTS (SELECT FROM oncehook.outcome o
                    WHERE o.event_id = l.event_id AND o.handler_id = l.handler_id AND o.result = 'succeeded')
 LIMIT (SELECT $1::bigint)
