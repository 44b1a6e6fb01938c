-- operation_gauges: what is open of each operation.
-- Run by store::operation_gauges, every few seconds.
-- $1 ids of the handlers that do operations
-- Rows: one per handler with something open. What has not ended has been under way since its key was reserved, which an
-- id of UUIDv7 says; a further run since it was first tried, or since it was begun. What is held waits for a person.
-- Indexes of delivery by handler, or its few pages; reads the hot table only.
SELECT d.handler_id,
       coalesce(max(extract(epoch FROM now() - CASE WHEN d.run > 1 THEN least(d.first_try_at, d.run_at, now())
                                                    ELSE to_timestamp(('x' || left(replace(d.event_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) END))
                  FILTER (WHERE d.state NOT IN ('uncertain', 'held')), 0)::float8 AS processing_oldest_s,
       coalesce(max(extract(epoch FROM now() - d.uncertain_at)), 0)::float8 AS uncertain_oldest_s,
       count(*) FILTER (WHERE d.state = 'uncertain') AS unresolved
  FROM oncehook.delivery d
 WHERE d.handler_id = ANY ($1)
 GROUP BY d.handler_id
