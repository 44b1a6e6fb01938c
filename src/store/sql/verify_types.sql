-- verify_types: the types of readable events, per source, for the handlers' patterns.
-- Run by store::verify.
-- $1 received since
-- Rows: source id, type; an event without a type has the empty one, as patterns see it.
SELECT e.source_id, coalesce(e.type, '')
  FROM oncehook.event e
 WHERE e.id >= oncehook.uuid7_floor($1) AND (e.state IS NULL OR e.state = 'unrecognized')
 GROUP BY 1, 2
