-- verify_lease_expired: leases that ended long ago and that nobody has reaped.
-- Run by store::verify.
-- $1 examples  $2 patience (seconds)
-- Rows: findings. A node reaps within 2 s; but a transaction that is still open keeps its row,
-- for as long as its handler may run. Index delivery_lease.
SELECT count(*) OVER () AS found, d.event_id, NULL::int AS source_id, NULL::text AS key, d.handler_id, d.run::int AS run,
       format('its lease ended %s s ago', floor(extract(epoch FROM now() - d.lease_until))) AS detail
  FROM oncehook.delivery d
 WHERE d.state = 'leased' AND d.lease_until < now() - make_interval(secs => $2)
 ORDER BY d.lease_until LIMIT (SELECT $1::bigint)
