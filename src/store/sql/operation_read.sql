-- operation_read: operations by their keys or by their ids, as one snapshot has them.
-- Run by store::operation.
-- $1 source_ids  $2 keys  $3 event_ids (either the first two or the third are given)  $4 whether with the answers' bytes
-- Rows: one per operation found, with its position (from 1).
-- Index event_key_NN_pkey, event_DAY_pkey, delivery_pkey, outcome_DAY_pkey, attempt_DAY_event_id_idx, response_DAY_pkey,
-- a probe each; every LIMIT keeps a look-up below its join.
-- `late`: a late answer that says that a call of the last run's effect key was applied, where no outcome says so.
-- `gone`: by the database's clock, whether or not the keeper has emptied it.
SELECT q.no::int AS no, e.id, s.name AS operation, e.key, e.correlation_id,
       CASE WHEN k.event_id = e.id THEN k.first_seen ELSE r.received_at END AS created_at,
       CASE WHEN k.event_id = e.id THEN k.expires_at ELSE k.first_seen END AS expires_at,
       d.run AS live_run, d.state, d.tries, d.next_check_at, d.changed_at,
       o.run, o.result, o.decided_by, o.reason, o.attempts, o.finished_at,
       coalesce(late.resource, o.resource) AS resource, coalesce(late.external_id, o.external_id) AS external_id,
       late.ended_at AS late_at, kept.status::int AS status, kept.headers, kept.body, coalesce(kept.gone, false) AS gone,
       greatest(d.changed_at, o.finished_at, late.ended_at, a.ended_at) AS updated_at
  FROM (SELECT u.no, k.event_id FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS u(source_id, key, no)
         CROSS JOIN LATERAL (SELECT event_id FROM oncehook.event_key WHERE source_id = u.source_id AND key = u.key LIMIT 1) k
         UNION ALL
        SELECT u.no, u.event_id FROM unnest($3::uuid[]) WITH ORDINALITY AS u(event_id, no)) q
 CROSS JOIN LATERAL (SELECT id, source_id, key, correlation_id, request_id FROM oncehook.event WHERE id = q.event_id LIMIT 1) e
 CROSS JOIN LATERAL (SELECT s.name, h.id AS handler_id, h.keep_response
                       FROM oncehook.source s JOIN oncehook.handler h ON h.operation_of = s.id
                      WHERE s.id = e.source_id LIMIT 1) s
  LEFT JOIN LATERAL (SELECT event_id, first_seen, expires_at FROM oncehook.event_key
                      WHERE source_id = e.source_id AND key = e.key LIMIT 1) k ON true
  LEFT JOIN LATERAL (SELECT received_at FROM oncehook.request WHERE id = e.request_id LIMIT 1) r ON true
  LEFT JOIN LATERAL (SELECT run, state, (failures + losses + not_yet)::int AS tries,
                            CASE WHEN state = 'leased' THEN lease_until
                                 WHEN state IN ('ready', 'uncertain') AND run_at < 'infinity' THEN run_at END AS next_check_at,
                            greatest(leased_at, uncertain_at) AS changed_at
                       FROM oncehook.delivery WHERE event_id = e.id AND handler_id = s.handler_id LIMIT 1) d ON true
  LEFT JOIN LATERAL (SELECT run, generation, result, decided_by, reason, resource, external_id, attempts, finished_at
                       FROM oncehook.outcome WHERE event_id = e.id AND handler_id = s.handler_id ORDER BY run DESC LIMIT 1) o ON true
  LEFT JOIN LATERAL (SELECT max(ended_at) AS ended_at FROM oncehook.attempt WHERE event_id = e.id) a ON true
  LEFT JOIN LATERAL (SELECT l.resource, l.external_id, l.ended_at, l.status, l.headers, CASE WHEN $4 THEN l.body END AS body
                       FROM oncehook.attempt l
                      WHERE l.event_id = e.id AND l.handler_id = s.handler_id AND l.verdict = 'evidence' AND l.answer = 'succeeded'
                        AND EXISTS (SELECT FROM oncehook.outcome p
                                     WHERE p.event_id = l.event_id AND p.handler_id = l.handler_id AND p.run = l.run AND p.generation = o.generation)
                      ORDER BY l.ended_at LIMIT 1) late ON o.result NOT IN ('succeeded', 'skipped')
  LEFT JOIN LATERAL (SELECT late.status, late.headers, late.body, late.ended_at + s.keep_response <= clock_timestamp() AS gone
                      WHERE late.status IS NOT NULL
                      UNION ALL
                     SELECT p.status, p.headers, CASE WHEN $4 THEN p.body END, p.purged_at IS NOT NULL OR p.expires_at <= clock_timestamp()
                       FROM oncehook.response p
                      WHERE late.status IS NULL AND p.event_id = e.id AND p.handler_id = s.handler_id AND p.run = o.run
                      LIMIT 1) kept ON true
