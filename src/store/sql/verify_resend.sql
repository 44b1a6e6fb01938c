-- verify_resend: calls that were made while an earlier one, whose result was unknown, could be under way.
-- Run by store::verify.
-- $1 examples  $2 received since
-- Rows: findings. The first try is on record with the time until which no other may begin; it was over before
-- that if its own late answer was kept, or a probe ended its run. The other is a later try, a live lease, or the
-- answer that ended a run; of this run or of a later one. Index attempt_event, delivery_pkey, outcome_DAY_pkey,
-- for such tries only. The hour allows for a clock that was set back.
SELECT count(*) OVER () AS found, u.event_id, NULL::int AS source_id, NULL::text AS key, u.handler_id, u.run::int AS run,
       'sent again before ' || to_char(u.in_flight_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS detail
  FROM oncehook.attempt u
 CROSS JOIN LATERAL (
   SELECT least(u.in_flight_until,
                (SELECT min(k.ended_at) FROM oncehook.attempt k
                  WHERE k.event_id = u.event_id AND k.lease_token = u.lease_token AND k.verdict = 'evidence' AND k.answer IS NOT NULL),
                (SELECT p.finished_at FROM oncehook.outcome p
                  WHERE p.event_id = u.event_id AND p.handler_id = u.handler_id AND p.run = u.run AND p.decided_by = 'probe')) AS at) ended
 WHERE u.ended_at >= $2::timestamptz - interval '1 hour' AND u.in_flight_until IS NOT NULL
   AND (EXISTS (SELECT FROM oncehook.attempt a
                 WHERE a.event_id = u.event_id AND a.handler_id = u.handler_id AND a.run >= u.run AND a.verdict NOT IN ('evidence', 'probe')
                   AND a.lease_token <> u.lease_token AND a.ended_at > u.ended_at AND a.started_at < ended.at)
     OR EXISTS (SELECT FROM oncehook.delivery d
                 WHERE d.event_id = u.event_id AND d.handler_id = u.handler_id AND d.run >= u.run
                   AND d.leased_at >= u.ended_at AND d.leased_at < ended.at)
     OR EXISTS (SELECT FROM oncehook.outcome o
                 WHERE o.event_id = u.event_id AND o.handler_id = u.handler_id AND o.run = u.run AND o.decided_by = 'handler'
                   AND o.finished_at < ended.at
                   AND o.attempts > (SELECT count(*) FROM oncehook.attempt t
                                      WHERE t.event_id = u.event_id AND t.handler_id = u.handler_id AND t.run = u.run
                                        AND t.verdict NOT IN ('evidence', 'probe')))
     OR EXISTS (SELECT FROM oncehook.outcome o
                 WHERE o.event_id = u.event_id AND o.handler_id = u.handler_id AND o.run > u.run AND o.decided_by = 'handler'
                   AND o.lease_token IS NOT NULL AND o.finished_at < ended.at))
 LIMIT (SELECT $1::bigint)
