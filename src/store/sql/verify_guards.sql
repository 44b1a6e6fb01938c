-- verify_guards: constraints and triggers that other invariants rest on, and that are not in force.
-- Run by store::verify.
-- $1 examples
-- Rows: findings: a table or partition of ours without a valid primary key that ought to have one;
-- the audit without its trigger.
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, NULL::int AS source_id, NULL::text AS key, NULL::int AS handler_id, NULL::int AS run, detail
  FROM (SELECT format('%s has no valid primary key', c.relname) AS detail
          FROM pg_class c
         WHERE c.relnamespace = 'oncehook'::regnamespace AND c.relkind IN ('r', 'p')
           AND (c.relname IN ('source', 'handler', 'handler_cap', 'delivery', 'conflict', 'audit', 'bulk_replay', 'token')
                OR coalesce((SELECT i.inhparent FROM pg_inherits i WHERE i.inhrelid = c.oid), c.oid)
                   IN (to_regclass('oncehook.event_key'), to_regclass('oncehook.request'), to_regclass('oncehook.event'), to_regclass('oncehook.outcome')))
           AND NOT EXISTS (SELECT FROM pg_index x WHERE x.indrelid = c.oid AND x.indisprimary AND x.indisvalid AND x.indisready)
         UNION ALL
        SELECT 'the audit can be changed: its trigger is missing or disabled'
         WHERE NOT EXISTS (SELECT FROM pg_trigger t
                            WHERE t.tgrelid = to_regclass('oncehook.audit') AND t.tgname = 'append_only' AND t.tgenabled IN ('O', 'A'))) missing
 ORDER BY detail LIMIT (SELECT $1::bigint)
