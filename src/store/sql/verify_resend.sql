-- verify_resend: calls that were made while an earlier one, whose result was unknown, could be under way.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. The first try is on record with the time until which no other may begin; the other is
-- a later try, a live lease, or the answer that ended the run. Index attempt_event, delivery_pkey,
-- outcome_DAY_pkey, for such tries only. The hour allows for a clock that was set back.
SELECT count(*) OVER () AS found, u.event_id, NULL::int AS source_id, NULL::text AS key, u.handler_id, u.run::int AS run,
       'sent again before ' || to_char(u.in_flight_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS detail
  FROM oncehook.attempt u
 WHERE u.ended_at >= $2::timestamptz - interval '1 hour' AND u.in_flight_until IS NOT NULL
   AND (EXISTS (SELECT FROM oncehook.attempt a
                 WHERE a.event_id = u.event_id AND a.handler_id = u.handler_id AND a.run = u.run AND a.verdict NOT IN ('evidence', 'probe')
                   AND a.lease_token <> u.lease_token AND a.ended_at > u.ended_at AND a.started_at < u.in_flight_until)
     OR EXISTS (SELECT FROM oncehook.delivery d
                 WHERE d.event_id = u.event_id AND d.handler_id = u.handler_id AND d.run = u.run
                   AND d.leased_at >= u.ended_at AND d.leased_at < u.in_flight_until)
     OR EXISTS (SELECT FROM oncehook.outcome o
                 WHERE o.event_id = u.event_id AND o.handler_id = u.handler_id AND o.run = u.run AND o.decided_by = 'handler'
                   AND o.finished_at < u.in_flight_until
                   AND o.attempts > (SELECT count(*) FROM oncehook.attempt t
                                      WHERE t.event_id = u.event_id AND t.handler_id = u.handler_id AND t.run = u.run
                                        AND t.verdict NOT IN ('evidence', 'probe'))))
 LIMIT (SELECT $1::bigint)
