-- emitted_claim: takes emitted events for this node, the oldest first.
-- Run by store::outbox::claim, a transaction of its own.
-- $1 source ids that the node knows  $2 limit  $3 lease (seconds)  $4 bytes of bodies at most, the first one's aside
-- Rows: what the ingest transaction needs. A node that dies leaves them to whoever comes when the
-- lease has ended.
-- Index emitted_pkey: the table holds what is on its way.
UPDATE oncehook.emitted e
   SET lease_until = clock_timestamp() + make_interval(secs => $3)
 WHERE e.ctid = ANY (ARRAY(
   SELECT ctid
     FROM (SELECT ctid, row_number() OVER by_id AS no, sum(size) OVER by_id AS bytes
             FROM (SELECT ctid, id, octet_length(body) AS size FROM oncehook.emitted
                    WHERE lease_until < now() AND source_id = ANY ($1::int[])
                    ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED) waiting
           WINDOW by_id AS (ORDER BY id)) counted
    WHERE bytes <= $4 OR no = 1))
RETURNING e.id, e.source_id, e.key, e.type, e.entity, e.occurred_at, e.body, e.caused_by, e.correlation_id
