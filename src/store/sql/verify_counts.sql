-- verify_counts: how many rows the checks of one verification look at.
-- Run by store::verify, first.
-- $1 received or written since
-- Rows: 1. Only the day partitions since then are read; deliveries, and the keys' own column, in full.
SELECT (SELECT count(*) FROM oncehook.event_key WHERE event_id >= oncehook.uuid7_floor($1)) AS keys,
       (SELECT count(*) FROM oncehook.event WHERE id >= oncehook.uuid7_floor($1)) AS events,
       (SELECT count(*) FROM oncehook.request WHERE id >= oncehook.uuid7_floor($1)) AS requests,
       (SELECT count(*) FROM oncehook.outcome WHERE event_id >= oncehook.uuid7_floor($1)) AS outcomes,
       (SELECT count(*) FROM oncehook.attempt WHERE ended_at >= $1) AS attempts,
       (SELECT count(*) FROM oncehook.receipt WHERE received_at >= $1) AS receipts,
       (SELECT count(*) FROM oncehook.conflict WHERE seen_at >= $1) AS conflicts,
       (SELECT count(*) FROM oncehook.audit WHERE at >= $1) AS audits,
       (SELECT count(*) FROM oncehook.effect WHERE event_id >= oncehook.uuid7_floor($1)) AS effects,
       (SELECT count(*) FROM oncehook.delivery) AS deliveries
