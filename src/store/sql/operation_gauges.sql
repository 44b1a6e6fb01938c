-- operation_gauges: what is open of each operation.
-- Run by store::operation_gauges, every few seconds.
-- $1 ids of the handlers that do operations
-- Rows: one per handler with something open; an id of UUIDv7 says when it was reserved.
-- Indexes of delivery by handler, or its few pages; reads the hot table only.
SELECT d.handler_id,
       min(d.event_id::text) FILTER (WHERE d.state <> 'uncertain') AS processing_oldest,
       coalesce(max(extract(epoch FROM now() - d.uncertain_at)), 0)::float8 AS uncertain_oldest_s,
       count(*) FILTER (WHERE d.state = 'uncertain') AS unresolved,
       extract(epoch FROM now())::float8 AS now_s
  FROM oncehook.delivery d
 WHERE d.handler_id = ANY ($1)
 GROUP BY d.handler_id
