-- delivery_run_sql: runs a `sql` handler over locked deliveries, each in a block of its own.
-- Run by dispatch::handler::sql through store::handling::run_sql, in the settle transaction.
-- $1 function  $2 whether it answers jsonb  $3 event_ids  $4 runs  $5 attempts  $6 effect_keys  $7 source names  $8 budget (ms)
-- $9 whether it serves an operation: then what its answer says of the response comes too
-- Rows: number (from 1), answer, and the error if there was one; those not returned were not run.
-- Of an answer only the members that mean something leave the server, and only scalars: jsonb may
-- be nested deeper than its reader goes, and as large as 255 MB.
SELECT no,
       CASE WHEN jsonb_typeof(answer) = 'object' THEN
         (SELECT jsonb_object_agg(key, CASE WHEN jsonb_typeof(value) IN ('object', 'array') THEN '[]' ELSE value END)
            FROM jsonb_each(answer) WHERE key IN ('result', 'reason', 'resource', 'after_s'))
       END,
       code, message, object_name, line, status, headers, body, external_id
  FROM oncehook.run_sql_handler($1, $2, $3::uuid[], $4::smallint[], $5::int[], $6::text[], $7::text[], make_interval(secs => $8::float8 / 1000), $9)
