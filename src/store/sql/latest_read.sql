-- latest_read: what was applied last to an object, and whether another call about it is under way.
-- Run by store::latest::read, before a call is sent and after its claim was committed: of two calls the one that looks
-- later sees the other.
-- $1 handler_id  $2 entity  $3 where versions are read from  $4 event_id  $5 the object's lane
-- Rows: 1. What has a lane has it by this object, as far as it was stored since the handler had lanes; what has none
-- is looked up. What is uncertain may turn out to be applied. Index latest_pkey, delivery_lease, delivery_uncertain,
-- delivery_one_head, event_DAY_pkey.
SELECT (SELECT version::text FROM oncehook.latest WHERE handler_id = $1 AND entity = $2 AND read_from = $3) AS version,
       EXISTS (SELECT FROM oncehook.delivery d
                WHERE d.handler_id = $1 AND d.state = 'leased' AND d.lane IS NULL AND d.event_id <> $4
                  AND EXISTS (SELECT FROM oncehook.event e WHERE e.id = d.event_id AND e.entity = $2))
    OR EXISTS (SELECT FROM oncehook.delivery d
                WHERE d.handler_id = $1 AND d.state = 'uncertain' AND d.lane IS NULL AND d.event_id <> $4
                  AND EXISTS (SELECT FROM oncehook.event e WHERE e.id = d.event_id AND e.entity = $2))
    OR EXISTS (SELECT FROM oncehook.delivery d
                WHERE d.handler_id = $1 AND d.lane = $5 AND d.state IN ('leased', 'uncertain') AND d.event_id <> $4) AS under_way
