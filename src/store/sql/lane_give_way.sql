-- lane_give_way: a head that waits for its time leaves its place to what can run behind it.
-- Run by store::lanes, before lane_promote and in its transaction, after a commit that may have added
-- a delivery to its lane. It keeps its number: it is next again as soon as its time has come.
-- $1 handler_ids  $2 lanes
-- Rows: heads that gave way; 0 is no error. Index delivery_one_head, and delivery_blocked for such a head; rows by address,
-- as in delivery_claim.
UPDATE oncehook.delivery d
   SET state = 'blocked'
 WHERE d.ctid = ANY (ARRAY(
   SELECT x.ctid
     FROM (SELECT DISTINCT handler_id, lane FROM unnest($1::int[], $2::text[]) AS u(handler_id, lane)
            ORDER BY handler_id, lane) q
    CROSS JOIN LATERAL (SELECT ctid FROM oncehook.delivery
                         WHERE handler_id = q.handler_id AND lane = q.lane AND lane IS NOT NULL AND state <> 'blocked'
                           AND state = 'ready' AND postponed AND run_at > now()
                           AND EXISTS (SELECT FROM oncehook.delivery behind
                                        WHERE behind.handler_id = q.handler_id AND behind.lane = q.lane AND behind.state = 'blocked'
                                          AND (NOT behind.postponed OR behind.run_at <= now()))
                         LIMIT 1 FOR UPDATE) x))
