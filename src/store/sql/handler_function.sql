-- handler_function: looks up a `sql` handler's function.
-- Run by store::registry::sql_function at start and reload.
-- $1 qualified name
-- Rows: 0 there is no such function of one oncehook.delivered that this role may call; 1 its safely quoted name and what
-- it returns.
SELECT quote_ident(n.nspname) || '.' || quote_ident(p.proname) AS call, format_type(p.prorettype, NULL) AS returns
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE p.oid = to_regprocedure($1 || '(oncehook.delivered)') AND p.prokind = 'f'
   AND has_function_privilege(p.oid, 'EXECUTE') AND has_schema_privilege(n.oid, 'USAGE')
