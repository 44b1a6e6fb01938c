-- verify_caps: handlers without the row that their caps are kept by: a capped one would never be
-- claimed for.
-- Run by store::verify.
-- $1 examples
SELECT count(*) OVER () AS found, NULL::uuid AS event_id, NULL::int AS source_id, NULL::text AS key, h.id AS handler_id, NULL::int AS run,
       'it has no row in handler_cap'::text AS detail
  FROM oncehook.handler h
 WHERE h.retired_at IS NULL AND NOT EXISTS (SELECT FROM oncehook.handler_cap c WHERE c.handler_id = h.id)
 LIMIT (SELECT $1::bigint)
