-- lane_promote: the next delivery of each lane that has no head becomes its head.
-- Run by store::lanes, twice: in the transaction that took a head away, as the statement after it
-- (whose snapshot no longer has that head), and after the commit of whatever took a head away or
-- added a blocked delivery. Of the two commits that leave a lane without a head, the later one's
-- look sees both.
-- $1 handler_ids  $2 lanes
-- Rows: deliveries promoted; 0 is no error, the lane has its head or nothing waits in it.
-- Next is the first one that does not wait for its time; if all do, the one whose time comes first.
-- Index delivery_one_head, delivery_blocked: a probe per lane, however many wait; those that wait for
-- their time are read. Rows by address, as in delivery_claim. A unique violation says that another has
-- promoted meanwhile.
UPDATE oncehook.delivery d
   SET state = 'ready', run_at = greatest(run_at, clock_timestamp())
 WHERE d.ctid = ANY (ARRAY(
   SELECT x.ctid
     FROM (SELECT DISTINCT handler_id, lane FROM unnest($1::int[], $2::text[]) AS u(handler_id, lane)
            ORDER BY handler_id, lane) q
    CROSS JOIN LATERAL (SELECT ctid FROM oncehook.delivery
                         WHERE handler_id = q.handler_id AND lane = q.lane AND state = 'blocked'
                           AND lane_seq = coalesce(
                                 (SELECT lane_seq FROM oncehook.delivery
                                   WHERE handler_id = q.handler_id AND lane = q.lane AND state = 'blocked'
                                     AND (NOT postponed OR run_at <= now())
                                   ORDER BY lane_seq LIMIT 1),
                                 (SELECT lane_seq FROM oncehook.delivery
                                   WHERE handler_id = q.handler_id AND lane = q.lane AND state = 'blocked'
                                   ORDER BY run_at, lane_seq LIMIT 1))
                           AND NOT EXISTS (SELECT FROM oncehook.delivery head
                                            WHERE head.handler_id = q.handler_id AND head.lane = q.lane
                                              AND head.lane IS NOT NULL AND head.state <> 'blocked')
                         LIMIT 1 FOR UPDATE) x))
