-- verify_lease_token: lease tokens that were used for more than one lease, or ended one twice.
-- Run by store::verify.
-- $1 examples  $2 written since
-- Rows: findings, one per token. Evidence bears the token of a lease that another row ended.
SELECT count(*) OVER () AS found, b.event_id, NULL::int AS source_id, NULL::text AS key, b.handler_id, b.run,
       format('its lease token stands in %s places', b.places) AS detail
  FROM (SELECT (array_agg(t.event_id))[1] AS event_id, (array_agg(t.handler_id))[1] AS handler_id,
               (array_agg(t.run::int))[1] AS run, count(*) AS places
          FROM (SELECT lease_token, event_id, handler_id, run FROM oncehook.delivery WHERE lease_token IS NOT NULL
                 UNION ALL
                SELECT lease_token, event_id, handler_id, run FROM oncehook.attempt
                 WHERE ended_at >= $2 AND lease_token IS NOT NULL AND verdict <> 'evidence') t
         GROUP BY t.lease_token HAVING count(*) > 1) b
 LIMIT (SELECT $1::bigint)
