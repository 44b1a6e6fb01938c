-- ledger_present: whether a handler's database has the ledger, and this role may use it.
-- Run by store::ledger, there.
-- Rows: 1. Read from the catalogue, which needs no right to the schema; the role is given for people.
SELECT t.oid IS NOT NULL AND d.oid IS NOT NULL AND f.oid IS NOT NULL AS present,
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(t.oid, 'SELECT')
                AND has_table_privilege(t.oid, 'INSERT') AND has_table_privilege(t.oid, 'UPDATE'), false) AS usable,
       quote_ident(current_user) AS role
  FROM (SELECT) AS one
  LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'oncehook'
  LEFT JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relname = 'applied' AND t.relkind IN ('r', 'p')
  LEFT JOIN pg_catalog.pg_type d ON d.typnamespace = n.oid AND d.typname = 'delivered'
  LEFT JOIN pg_catalog.pg_proc f ON f.pronamespace = n.oid AND f.proname = 'body_json' AND f.pronargs = 1
                                AND f.proargtypes[0] = d.oid
