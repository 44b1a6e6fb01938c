-- replay_last: the last finished run, and until when a call of this or an earlier one may be under way.
-- Run by store::replay::run and store::again, after replay_open, in a statement of its own.
-- $1 event_id  $2 handler_id
-- `under_way` is NULL when nothing can be: no call's result was unknown, its time is over, its own answer came
-- late and is kept, or a probe said what became of it. What a person said is no answer of the receiver's.
-- `answered`: since when a late answer is kept that a call of the last run's effect key was applied.
-- Index outcome_DAY_pkey, attempt_DAY_event_id_idx.
SELECT o.run, o.generation, o.result, o.decided_by,
       (SELECT max(u.in_flight_until) FROM oncehook.attempt u
         WHERE u.event_id = $1 AND u.handler_id = $2 AND u.in_flight_until > clock_timestamp()
           AND NOT EXISTS (SELECT FROM oncehook.attempt k
                            WHERE k.event_id = u.event_id AND k.lease_token = u.lease_token AND k.verdict = 'evidence' AND k.answer IS NOT NULL)
           AND NOT EXISTS (SELECT FROM oncehook.outcome p
                            WHERE p.event_id = u.event_id AND p.handler_id = u.handler_id AND p.run = u.run AND p.decided_by = 'probe')) AS under_way,
       (SELECT min(late.ended_at) FROM oncehook.attempt late
         WHERE late.event_id = $1 AND late.handler_id = $2 AND late.verdict = 'evidence' AND late.answer = 'succeeded'
           AND EXISTS (SELECT FROM oncehook.outcome p
                        WHERE p.event_id = late.event_id AND p.handler_id = late.handler_id AND p.run = late.run
                          AND p.generation = o.generation)) AS answered
  FROM oncehook.outcome o WHERE o.event_id = $1 AND o.handler_id = $2 ORDER BY o.run DESC LIMIT 1
