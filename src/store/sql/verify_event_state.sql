-- verify_event_state: events whose state does not fit their routes, or that name what is not
-- registered.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. Deliveries and outcomes are probed for unreadable and ignored events only.
SELECT count(*) OVER () AS found, b.id AS event_id, b.source_id, b.key, NULL::int AS handler_id, NULL::int AS run, b.detail
  FROM (SELECT e.id, e.source_id, e.key,
               CASE WHEN e.source_id <> ALL (coalesce((SELECT array_agg(id) FROM oncehook.source), '{}')) THEN 'its source is not registered'
                    WHEN NOT e.routes <@ coalesce((SELECT array_agg(id) FROM oncehook.handler), '{}') THEN 'its routes name a handler that is not registered'
                    WHEN e.state IS NULL AND cardinality(e.routes) = 0 THEN 'it has no state, and no routes'
                    WHEN e.state IS NOT NULL AND cardinality(e.routes) > 0 THEN 'it is ' || e.state || ', and has routes'
                    WHEN e.state IN ('unreadable', 'ignored')
                     AND (EXISTS (SELECT FROM oncehook.delivery d WHERE d.event_id = e.id)
                          OR EXISTS (SELECT FROM oncehook.outcome o WHERE o.event_id = e.id)) THEN 'it is ' || e.state || ', and was handled'
               END AS detail
          FROM oncehook.event e WHERE e.id >= oncehook.uuid7_floor($2)) b
 WHERE b.detail IS NOT NULL
 LIMIT (SELECT $1::bigint)
